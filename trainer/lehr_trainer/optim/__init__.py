"""Optimizers, their parameter groups, and the learning rate at each step."""

from __future__ import annotations

import pkgutil

import torch
from torch import nn

from lehr_trainer.configs.optimizer import OptimizerConfig
from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.optim.adamw import set_lr_factor

__all__ = ["build_optimizer", "lr_factor", "set_lr_factor"]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the config's optimizer; each group has a ``name`` and a ``peak_lr``."""
    optimizer: torch.optim.Optimizer = pkgutil.resolve_name(config.builder)(model, config)
    return optimizer
