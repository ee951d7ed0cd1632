"""A corpus that is too small is refused at once, with the share that the preparation confirms."""

from __future__ import annotations

import re

import pytest

from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data import prepare_dataset
from lehr_trainer.data.corpus_size import check_size
from lehr_trainer.data.validation import ValidationSet
from lehr_trainer.errors import BadData

LENGTH = 64


def config(folder, **corpus):
    corpus = {"kind": "text", "paths": [str(folder)], **corpus}
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": "byte"})


@pytest.mark.parametrize("document", ["file", "paragraph"])
def test_share_that_is_named_is_the_least_that_a_run_accepts(tmp_path, document):
    for number in range(4):
        text = "".join(f"Part {n} of {number} has these words.\n\n" for n in range(9))
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "same.txt").write_text((tmp_path / "0.txt").read_text())
    with pytest.raises(BadData, match=r"in 5 files.* 0 are held out, with at most 0 tokens") as why:
        check_size(config(tmp_path), ValidationConfig(share=0.001), LENGTH)
    assert "it has 4 different documents (each a file)" in str(why.value)
    named = {"file": r"do: validation.share: ([\d.]+)", "paragraph": r"paragraph and .*: ([\d.]+)"}
    share = float(re.search(named[document], str(why.value))[1])
    data = config(tmp_path, document=document)

    def scored(share):
        validation = ValidationConfig(share=share)
        prepared = prepare_dataset(data, validation, 257, tmp_path / "data", lambda *_: None)
        return ValidationSet(prepared, LENGTH, validation.tokens).sequences

    check_size(data, ValidationConfig(share=share), LENGTH)
    assert scored(share) >= 1
    for check in (lambda s: check_size(data, ValidationConfig(share=s), LENGTH), scored):
        with pytest.raises(BadData):
            check(share - 0.001)
