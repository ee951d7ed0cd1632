"""Every optimizer of the trainer, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import TypeAdapter
from torch import nn
from torch.optim import Optimizer

from lehr_trainer.configs.optimizer import OptimizerConfig
from lehr_trainer.optim import build_optimizer

_union, *_ = get_args(OptimizerConfig)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{(name := kind.model_fields["name"].default): {"name": name} for kind in get_args(_union)},
    "adamw, not fused": {"name": "adamw", "fused": False},
}
"""Settings by a name for people; a new optimizer is in it by itself."""
TORCHAO = "adamw8bit, torchao"
"""Compiles for a minute on a CPU, so that few tests have it."""
_SETTINGS = {**OPTIMIZERS, TORCHAO: {"name": "adamw8bit", "library": "torchao"}}
_PACKAGES = {"adamw8bit": "bitsandbytes", TORCHAO: "torchao"}


def settings(name: str) -> dict[str, Any]:
    """Return the settings of that name; skip the test where its package is missing."""
    if name in _PACKAGES:
        pytest.importorskip(_PACKAGES[name], reason=f"{_PACKAGES[name]} is not installed")
    return _SETTINGS[name]


def build(name: str, model: nn.Module) -> Optimizer:
    """Build the optimizer of that name; skip the test where its package is missing."""
    config = TypeAdapter(OptimizerConfig).validate_python(settings(name))
    return build_optimizer(model, config)
