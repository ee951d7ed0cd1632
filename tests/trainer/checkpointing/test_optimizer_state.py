"""An optimizer's state in a checkpoint: what it holds, and the optimizers of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lehr_trainer.checkpointing import checkpoint, optimizer_state
from lehr_trainer.configs.optimizer import AdamWConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer, set_lr_factor

SHAPE = LlamaConfig.model_validate(
    {
        **MODEL_PRESETS["tiny"].values,
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
)
CONFIG = AdamWConfig(lr=1e-3)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    """Take real steps, each of which depends only on its number and the state."""
    for number in numbers:
        torch.manual_seed(number)
        tokens = torch.randint(0, SHAPE.vocab_size, (4, 17))
        cross_entropy(model(tokens[:, :-1]), model.head_weight, tokens[:, 1:]).backward()
        set_lr_factor(optimizer, 1 - number / 100)
        optimizer.step()
        optimizer.zero_grad()


def saved(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    document, tensors = optimizer_state.capture(model, optimizer)
    checkpoint.write_checkpoint(
        folder,
        tensors={"optimizer": tensors},
        documents={"state": {"optimizer": document}},
        manifest=checkpoint.Manifest(step=1, tokens=1, reason="interval"),
    )
    return folder


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    document = checkpoint.read_document(folder, "state")["optimizer"]
    tensors = checkpoint.read_tensors(folder, checkpoint.read_manifest(folder), "optimizer")
    optimizer_state.restore(folder, model, optimizer, document, tensors)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build_model(SHAPE, device="cpu", seed=0)
    optimizer = build_optimizer(model, CONFIG)
    steps(model, optimizer, range(1))
    return model, optimizer


def test_tensor_that_is_listed_but_missing_is_damage(tmp_path: Path) -> None:
    model, optimizer = trained()
    document, tensors = optimizer_state.capture(model, optimizer)
    tensors.pop("norm.weight/exp_avg")
    with pytest.raises(BadCheckpoint, match=r"lists the optimizer's tensor 'norm.weight/exp_avg'"):
        optimizer_state.restore(tmp_path, model, optimizer, document, tensors)


def test_state_of_a_parameter_that_the_optimizer_lacks_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    document, tensors = optimizer_state.capture(model, optimizer)
    other = torch.optim.AdamW([p for p in model.parameters() if p is not model.norm.weight])
    with pytest.raises(BadCheckpoint, match=r"this run's optimizer: it holds state of norm.weight"):
        optimizer_state.restore(tmp_path, model, other, document, tensors)
