"""The examples of docs/trainer.md are valid, and so are old ways to write a config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from lehr_testing.paths import ROOT
from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.memory import training_memory

DOCS = ROOT / "docs" / "trainer.md"
EXAMPLES = [
    example
    for example in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    if "\nrun:\n" not in example  # That is a whole spec.
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0][:50])
def test_each_example_of_the_docs_is_a_valid_config(example: str, tmp_path: Path) -> None:
    values = {**train_values(tmp_path), **yaml.safe_load(example)}
    if values.keys() & {"tokens", "tokens_per_parameter", "stages"}:
        del values["steps"]
    config = TrainConfig.model_validate(values)
    given: dict[str, Any] = yaml.safe_load(example)
    dumped = config.model_dump()
    for group, fields in given.items():
        if group != "model" and isinstance(fields, dict):
            plain = {k: v for k, v in fields.items() if not isinstance(v, dict | list)}
            assert {name: dumped[group].get(name) for name in plain} == plain


def test_every_switch_has_an_example() -> None:
    shown = {name for example in EXAMPLES for name in yaml.safe_load(example)}
    assert {
        "model", "optimizer", "schedule", "loss", "precision", "attention", "activation_checkpointing",
        "compile", "skip_step", "parallel", "diagnostics", "profile",
    } <= shown  # fmt: skip


def test_default_config_is_a_llama_trained_by_adamw(tmp_path: Path) -> None:
    values = train_values(tmp_path)
    values["model"] = {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    }  # fmt: skip
    config = TrainConfig.model_validate(values)
    assert (config.model.kind, config.optimizer.name, config.optimizer.lr) == (
        "llama", "adamw", 1e-3,
    )  # fmt: skip
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": {"warmup_steps": 30}}, "warmup takes 30 steps, but it has only 20"),
        (
            {"optimizer": {"name": "muon", "embedding_lr": 1e-3, "head_lr": 2e-3}},
            "optimizer.head_lr 0.002 differs from optimizer.embedding_lr 0.001",
        ),
        (
            {"optimizer": {"name": "muon", "qkv_heads": 3}},
            "optimizer.qkv_heads 3 does not divide both the 2 query heads and the 1 key-value",
        ),
        (
            {"model": "gpt2-134m", "batch": {"sequences": 1, "sequence_length": 1024}},
            "longer than model.max_sequence_length 512",
        ),
        ({"attention": {"backend": "fa3-fp8"}}, "FP8 attention has no backward pass"),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other_are_refused(
    changes: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate({**train_values(tmp_path), **changes})


def test_plan_covers_smaller_optimizers_and_gpt2(tmp_path: Path) -> None:
    def plan(**changes: Any) -> Any:
        return training_memory(TrainConfig.model_validate({**train_values(tmp_path), **changes}))

    adamw = plan().phases["resting"].optimizer
    assert plan(optimizer={"name": "adamw8bit"}).phases["resting"].optimizer < adamw
    assert plan(optimizer={"name": "muon"}).phases["resting"].optimizer < adamw
    gpt2 = plan(model="gpt2-134m")
    assert gpt2.phases["resting"].parameters == 4 * 134_601_216
    assert gpt2.kept > 0


def test_gpt2_flops_are_six_per_weight_plus_attention(tmp_path: Path) -> None:
    config = TrainConfig.model_validate({**train_values(tmp_path), "model": "gpt2"}).model
    weights = 12 * 12 * 768**2 + 50_257 * 768
    assert flops_per_token(config, 512) == pytest.approx(
        6 * weights + 12 * 12 * 768 * 512, rel=2e-3
    )
