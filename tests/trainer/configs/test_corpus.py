"""A mix of corpora in a config: what is valid, and errors that name the field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lehr_trainer.configs.corpus import FilesCorpus, MixCorpus, StdlibCorpus, corpora
from lehr_trainer.configs.train import DataConfig

TEXT = {"kind": "text", "paths": ["/texts"]}


def mix(**parts):
    return {
        "kind": "mix",
        "parts": {name: {"corpus": TEXT, "weight": 1} | part for name, part in parts.items()},
    }


def test_shares_are_the_weights_over_their_sum():
    found = DataConfig.model_validate(
        {"corpus": mix(web={"weight": 3}, own={"corpus": {"kind": "stdlib"}, "weight": 1})}
    ).corpus
    assert isinstance(found, MixCorpus)
    assert found.shares() == {"web": 0.75, "own": 0.25}
    assert corpora(found, "data.corpus") == {
        "data.corpus.parts.web.corpus": FilesCorpus(kind="text", paths=["/texts"]),
        "data.corpus.parts.own.corpus": StdlibCorpus(),
    }
    assert corpora(StdlibCorpus(), "data.corpus") == {"data.corpus": StdlibCorpus()}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"web": {}}, "at least 2 items"),
        ({"web": {}, "code": {}}, "parts web and code are the same corpus"),
        ({"web": {"weight": 0}, "own": {"corpus": {"kind": "stdlib"}}}, "greater than 0"),
        ({"web": {"weight": "inf"}, "own": {"corpus": {"kind": "stdlib"}}}, "finite number"),
        ({"a/b": {}, "own": {"corpus": {"kind": "stdlib"}}}, "should match pattern"),
        ({"a.b": {}, "own": {"corpus": {"kind": "stdlib"}}}, "should match pattern"),
        ({"web": {}, "own": {"corpus": {"kind": "mix", "parts": {}}}}, "'mix' .*expected tags"),
    ],
)
def test_invalid_mixes_are_rejected(parts, says):
    with pytest.raises(ValidationError, match=says):
        DataConfig.model_validate({"corpus": mix(**parts)})


def test_mix_has_a_limit_of_corpora():
    def many(number):
        return {f"p{n}": {"corpus": {"kind": "text", "paths": [f"/{n}"]}} for n in range(number)}

    DataConfig.model_validate({"corpus": mix(**many(1000))})
    with pytest.raises(ValidationError, match="at most 1000"):
        DataConfig.model_validate({"corpus": mix(**many(1001))})
