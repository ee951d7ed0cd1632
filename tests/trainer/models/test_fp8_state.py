"""Histories of delayed scaling survive checkpoints, without a pickle.

Lehr's part is tested with a substitute that keeps histories where Transformer Engine does.
tests/gpu/test_kernels.py checks on a GPU that Transformer Engine keeps them there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing import fake_transformer_engine
from lehr_testing.assembled import assembled
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values
from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.configs.execution import Fp8Config
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.contract import layout
from lehr_trainer.models.fp8 import convert_to_fp8, fp8_state
from lehr_trainer.models.llama import Llama
from lehr_trainer.train import Training

DELAYED = {"compute": "fp32", "fp8": {"recipe": "te_delayed"}}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    fake_transformer_engine.install(monkeypatch)
    return train_values(
        text_corpus(tmp_path / "texts"),
        steps=100,
        precision=DELAYED,
        checkpoint={"every": 0, "asynchronous": False},
        diagnostics={"quality_every": 0, "sample": {"every": 0}},
        deterministic=False,
    )


def steps(training: Training, count: int) -> None:
    training.wrapped.train()
    training.metrics_logger.start_at(training.progress.step, training.progress.tokens)
    for _ in range(count):
        training.take_step()


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_resumed_run_keeps_its_fp8_histories(tmp_path: Path, config: dict) -> None:
    (tmp_path / "run").mkdir()
    first = assembled(tmp_path / "run", config)
    with first.loader:
        steps(first, 3)
        first.save("order", None)
        histories = copies(fp8_state(first.model))
        assert histories
        assert all((value != 0).any() for value in histories.values())
        steps(first, 2)
    saved = layout.checkpoint_dir(tmp_path / "run" / "attempt-1", 3)
    manifest = read_manifest(saved)
    assert different(read_tensors(saved, manifest, "fp8"), histories) == []
    assert not any("_extra_state" in name for name in read_tensors(saved, manifest, "model"))

    second = assembled(tmp_path / "run", config)
    with second.loader:
        assert second.progress.step == 3
        assert different(fp8_state(second.model), histories) == []
        steps(second, 2)
    assert different(fp8_state(second.model), copies(fp8_state(first.model))) == []
    assert different(dict(second.model.named_parameters()), dict(first.model.named_parameters())) == []  # fmt: skip


def test_run_without_its_fp8_histories_differs(
    tmp_path: Path, config: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would show nothing if FP8's rounding did not depend on the histories."""
    (tmp_path / "run").mkdir()
    first = assembled(tmp_path / "run", config)
    with first.loader:
        steps(first, 3)
        first.save("order", None)
        steps(first, 2)
    monkeypatch.setattr("lehr_trainer.checkpointing.state.load_fp8_state", lambda *_: None)
    second = assembled(tmp_path / "run", config)
    with second.loader:
        steps(second, 2)
    assert different(dict(second.model.named_parameters()), dict(first.model.named_parameters()))


def test_dry_run_and_diagnostics_do_not_change_fp8_histories(tmp_path: Path, config: dict) -> None:
    lengths = {"sequences": 4, "sequence_length": 64, "stages": [{"after": 0.9, "sequence_length": 128}]}  # fmt: skip
    (tmp_path / "run").mkdir()
    looking = {"quality_every": 1, "parts_every": 0, "sample": {"every": 0}}
    rehearsed = assembled(tmp_path / "run", {**config, "batch": lengths, "diagnostics": looking})
    (tmp_path / "plain").mkdir()
    plain = assembled(tmp_path / "plain", config)
    fresh = fp8_state(rehearsed.model)
    assert fresh, "two lengths are rehearsed"
    assert all((value == ("/scale" in name)).all() for name, value in fresh.items())
    with rehearsed.loader, plain.loader:
        # One batch for both: which windows a corpus has depends on the longest sequence.
        batch = plain.loader.batch(0)
        for training in (rehearsed, plain):
            training.loader.batch = lambda *_: batch  # type: ignore[method-assign]
            steps(training, 2)
    assert different(fp8_state(rehearsed.model), fp8_state(plain.model)) == []


@pytest.mark.parametrize("before_2_9", [True, False])
def test_both_names_of_the_engines_autocast_make_histories(
    monkeypatch: pytest.MonkeyPatch, before_2_9: bool
) -> None:
    fake_transformer_engine.install(monkeypatch, before_2_9=before_2_9)
    model = Llama(LlamaConfig(**{**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 1}))
    convert_to_fp8(model, Fp8Config(recipe="te_delayed"))
    model.eval()
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert fp8_state(model) == {}, "evaluation is not in FP8"
    model.train()
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert fp8_state(model)
