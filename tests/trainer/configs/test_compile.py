"""What is compiled, by device and by what the config names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.corpus import FilesCorpus, MixCorpus, StdlibCorpus, corpora
from lehr_trainer.configs.execution import CompileConfig
from lehr_trainer.configs.train import DataConfig, TrainConfig


@pytest.mark.parametrize(
    ("given", "on_cuda", "on_cpu"),
    [
        ({}, "block", "none"),
        ({"scope": "none"}, "none", "none"),
        ({"scope": "model"}, "model", "model"),
        ({"mode": "max-autotune"}, "block", "block"),
        ({"fullgraph": True}, "block", "block"),
    ],
)
def test_scope_by_device(given: dict[str, object], on_cuda: str, on_cpu: str) -> None:
    config = CompileConfig.model_validate(given)
    assert config.on("cuda").scope == on_cuda
    assert config.on("cpu").scope == on_cpu
    assert config.on("cpu").on("cuda") == config.on("cpu")


def test_mode_alone_records_cuda_graphs() -> None:
    assert CompileConfig(mode="reduce-overhead").on("cuda").cuda_graphs
    assert not CompileConfig(mode="max-autotune-no-cudagraphs").on("cuda").cuda_graphs


@pytest.mark.parametrize(
    ("more", "named"),
    [({"mode": "max-autotune"}, "compile.mode max-autotune"), ({"fullgraph": True}, "fullgraph")],
)
def test_settings_without_effect_are_refused(more: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=f"{named} has no effect"):
        CompileConfig.model_validate({"scope": "none", **more})


def test_unresolved_scope_is_no_answer() -> None:
    with pytest.raises(ValueError, match=r"compile\.scope is auto"):
        _ = CompileConfig().compiles


@pytest.mark.parametrize("backend", ["flash", "cudnn", "fa3", "fa4"])
def test_fp32_on_a_kernel_for_16_bits_is_refused(backend: str) -> None:
    values = train_values(
        Path("unused"), device="cuda", attention={"backend": backend}, precision={"compute": "fp32"}
    )
    with pytest.raises(ValidationError, match=f"attention.backend: {backend} takes bf16 and fp16"):
        TrainConfig.model_validate(values)
    TrainConfig.model_validate({**values, "precision": {"compute": "auto"}})
    if backend == "flash":
        TrainConfig.model_validate({**values, "device": "cpu"})


DELAYED = {"compute": "bf16", "fp8": {"recipe": "te_delayed"}}


def test_delayed_scaling_is_never_compiled() -> None:
    config = TrainConfig.model_validate(train_values(Path("unused"), precision=DELAYED))
    for device in ("cuda", "cpu"):
        assert config.on(device).compile.scope == "none"
    other = {"compute": "bf16", "fp8": {"recipe": "rowwise"}}
    config = TrainConfig.model_validate(train_values(Path("unused"), precision=other))
    assert config.on("cuda").compile.scope == "block"


@pytest.mark.parametrize(
    "given", [{"scope": "block"}, {"scope": "model"}, {"mode": "reduce-overhead"}]
)
def test_delayed_scaling_that_is_to_be_compiled_is_refused(given: dict[str, str]) -> None:
    values = train_values(Path("unused"), precision=DELAYED, compile=given)
    with pytest.raises(ValidationError, match="te_delayed cannot be compiled"):
        TrainConfig.model_validate(values)


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
