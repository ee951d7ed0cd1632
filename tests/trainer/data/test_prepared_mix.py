"""The data of a mix: its corpora as they are alone, and one held-out set of all."""

from __future__ import annotations

import numpy as np
import pytest

from lehr_testing.corpora import documents, prepare_mix, prepare_texts
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.errors import BadData
from lehr_trainer.evaluate import ValidationSet

WEB, CODE = documents(200, seed=1), documents(100, seed=2)


def parts(web=0.75, code=0.25, web_texts=WEB, code_texts=CODE):
    return {
        "web": {"weight": web, "texts": web_texts},
        "code": {"weight": code, "texts": code_texts},
    }


def decoded(tokens) -> set[str]:
    """The documents of byte tokens; each ends with token 256."""
    ends = np.flatnonzero(tokens == 256)
    return {bytes(one[one < 256].astype(np.uint8)).decode() for one in np.split(tokens, ends)}


def trained_on(prepared):
    return set().union(
        *(
            decoded(np.fromfile(prepared.directory / shard.name, dtype=prepared.dtype))
            for shard in read_manifest(prepared.directory).train
        )
    )


def test_each_corpus_of_a_mix_is_prepared_as_it_is_alone(tmp_path):
    mix = prepare_mix(tmp_path, parts())
    assert list(mix.parts) == ["code", "web"]
    assert mix.weights == {"code": 1, "web": 3}
    assert mix.share("web") == 0.75
    (tmp_path / "alone").mkdir()
    alone = prepare_texts(tmp_path / "alone", WEB)
    assert mix.parts["web"].digest == alone.digest
    assert mix.tokens == sum(part.tokens for part in mix.parts.values())
    assert mix.documents == sum(part.documents for part in mix.parts.values())


def test_no_held_out_document_of_any_corpus_is_trained_on(tmp_path):
    """Some documents are in both corpora."""
    shared = documents(150, seed=3)
    mix = prepare_mix(
        tmp_path, parts(web_texts=[*WEB, *shared], code_texts=[*CODE, *shared]), share=0.2
    )
    held_out = decoded(mix.held_out.tokens) - {""}
    assert len(held_out) > 50
    for name, part in mix.parts.items():
        assert len(held_out & set(WEB if name == "web" else CODE)) > 10
        assert trained_on(part) & set(shared)
        assert not trained_on(part) & held_out


def test_an_evaluation_scores_equally_many_tokens_of_each_corpus(tmp_path):
    mix = prepare_mix(tmp_path, parts(), share=0.2, tokens=1000)
    assert mix.validation_tokens == 1000
    assert {part.validation_tokens for part in mix.parts.values()} == {500}
    scored = ValidationSet(mix, 50, 1000)
    assert (scored.tokens, scored.sequences) == (1000, 20)
    inputs = np.concatenate([x.numpy() for x, _ in scored.batches()]).ravel()
    assert np.array_equal(inputs[:501], mix.parts["code"].held_out.tokens)
    assert np.array_equal(inputs[501:], mix.parts["web"].held_out.tokens[:499])


def test_set_of_an_evaluation_does_not_depend_on_the_weights(tmp_path):
    one, other = (prepare_mix(tmp_path, parts(web=web), tokens=1000) for web in (0.75, 5))
    assert one.validation_digest == other.validation_digest
    assert one.digest != other.digest, "the training data are others"
    again = prepare_mix(tmp_path, dict(reversed(parts().items())), tokens=1000)
    assert again == one, "the order of the parts in the config does not matter"
    fewer = prepare_mix(tmp_path, parts(), tokens=900)
    assert fewer.validation_digest != one.validation_digest


def test_a_changed_weight_is_changed_data_for_a_resume(tmp_path):
    one, other = (prepare_mix(tmp_path, parts(web=web), tokens=1000) for web in (0.75, 5))
    with pytest.raises(BadData, match="the training data changed"):
        other.require_same(digest=one.digest, validation_digest=one.validation_digest)
