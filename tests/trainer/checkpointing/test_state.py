"""The state of a training in a checkpoint: optimizer, random generators, progress."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from lehr_trainer.checkpointing import state
from lehr_trainer.checkpointing.checkpoint import Manifest, write_checkpoint
from lehr_trainer.checkpointing.optimizer_state import capture
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import AdamWConfig, LlamaConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer


def trained(config: LlamaConfig, *, fused: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build_model(config, device="cpu", seed=0)
    optimizer = build_optimizer(model, AdamWConfig(fused=fused))
    for seed in range(2):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return model, optimizer


def save_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    target = layout.checkpoint_dir(folder, 2)
    of_optimizer, tensors = capture(model, optimizer)
    write_checkpoint(
        target,
        tensors={"model": model.state_dict(), "optimizer": tensors},
        documents={
            "state": {
                "step": 2,
                "tokens": 20,
                "best_val_loss": 1.5,
                "optimizer": of_optimizer,
                "generators": [json.loads(state.save_generators())],
            }
        },
        manifest=Manifest(step=2, tokens=20, reason="interval"),
    )
    return target


@pytest.mark.parametrize("fused", [True, False])
def test_restored_optimizer_takes_the_same_next_steps(tmp_path: Path, fused: bool) -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["tiny"].values)
    model, optimizer = trained(config, fused=fused)
    target = save_state(tmp_path, model, optimizer)
    again = build_model(config, device="cpu", seed=9)
    again_optimizer = build_optimizer(again, AdamWConfig(fused=fused))
    progress, _ = state.restore(target, model=again, optimizer=again_optimizer, rank=0)
    assert (progress.step, progress.tokens, progress.best_val_loss) == (2, 20, 1.5)
    for seed in (7, 8):
        for one, its_optimizer in ((model, optimizer), (again, again_optimizer)):
            torch.manual_seed(seed)
            for parameter in one.parameters():
                parameter.grad = torch.randn_like(parameter)
            its_optimizer.step()
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b), name
    for key, value in capture(model, optimizer)[1].items():
        assert torch.equal(value, capture(again, again_optimizer)[1][key]), key


def test_every_random_generator_is_restored(tmp_path: Path) -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["tiny"].values)
    model, optimizer = trained(config, fused=True)

    def draw() -> tuple[float, float, float, list[float]]:
        gaussian = random.gauss(0, 1)
        legacy = float(np.random.normal())  # noqa: NPY002
        return random.random(), gaussian, legacy, torch.rand(3).tolist()

    draw()
    target = save_state(tmp_path, model, optimizer)
    want = draw()
    draw()
    state.restore(target, model=model, optimizer=optimizer, rank=0)
    assert draw() == want


def test_checkpoint_of_another_model_names_the_difference(tmp_path: Path) -> None:
    values = MODEL_PRESETS["tiny"].values
    model, optimizer = trained(LlamaConfig.model_validate(values), fused=True)
    target = save_state(tmp_path, model, optimizer)
    wider = LlamaConfig.model_validate({**values, "intermediate_size": 256})
    other = build_model(wider, device="cpu", seed=0)
    with pytest.raises(
        BadCheckpoint, match=r"belongs to another model: its .*gate_proj.weight has shape"
    ):
        state.restore(target, model=other, optimizer=build_optimizer(other, AdamWConfig()), rank=0)
    deeper = LlamaConfig.model_validate({**values, "num_hidden_layers": 5})
    other = build_model(deeper, device="cpu", seed=0)
    with pytest.raises(BadCheckpoint, match=r"missing tensors: layers\.4\..* and 6 more;"):
        state.restore(target, model=other, optimizer=build_optimizer(other, AdamWConfig()), rank=0)


def test_a_loss_of_nan_is_never_the_best() -> None:
    progress = TrainProgress()
    for loss, best in ((math.nan, None), (2.0, 2.0), (math.nan, 2.0), (None, 2.0), (1.0, 1.0)):
        progress.remember_best(loss)
        assert progress.best_val_loss == best
