"""A corpus that is too small is refused at once, by the rule of the preparation."""

from __future__ import annotations

import pytest

from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import check_size, document_hash, is_held_out
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.errors import BadData
from lehr_trainer.evaluate import ValidationSet

LENGTH = 64


def config(folder, **corpus):
    corpus = {"kind": "text", "paths": [str(folder)], **corpus}
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": "byte"})


@pytest.mark.parametrize("document", ["file", "paragraph"])
def test_share_is_refused_where_the_preparation_refuses_it(tmp_path, document):
    for number in range(4):
        text = "".join(f"Part {n} of {number} has these words.\n\n" for n in range(9))
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "same.txt").write_text((tmp_path / "0.txt").read_text())
    data = config(tmp_path, document=document)

    def sequences(share):
        validation = ValidationConfig(share=share)
        prepared = prepare_dataset(data, validation, 257, tmp_path / "data", lambda *_: None)
        return ValidationSet(prepared, LENGTH, validation.tokens).sequences

    refused = []
    for share in (0.001, 0.1, 0.2, 0.3, 0.4, 0.49):
        try:
            check_size(data, ValidationConfig(share=share), LENGTH)
        except BadData as error:
            refused.append(str(error))
            with pytest.raises(BadData):
                sequences(share)
        else:
            assert sequences(share) >= 1
    assert 0 < len(refused) < 6
    count = {"file": 4, "paragraph": 36}[document]
    assert f"it has {count} different documents (each a {document}) in 5 files" in refused[0]
    finer = {"file": "document: paragraph or line,", "paragraph": "document: line,"}[document]
    assert finer in refused[0]
    assert "0 are held out, with at most 0 tokens to score" in refused[0]


def test_repeats_of_a_document_are_trained_on(tmp_path):
    lines = [f"Line {number} has {'many ' * 20}words." for number in range(40)]
    short = next(x for x in map(str, range(99)) if not is_held_out(document_hash(x.encode()), 0.49))
    held_out = [line for line in lines if is_held_out(document_hash(line.encode()), 0.49)]
    (tmp_path / "a.txt").write_text("\n".join([*held_out, *[short] * LENGTH]))
    check_size(config(tmp_path, document="line"), ValidationConfig(share=0.49), LENGTH)
