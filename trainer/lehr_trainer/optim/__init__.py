"""Optimizers, their parameter groups, and the learning rate at each step."""

from __future__ import annotations

import torch
from torch import nn

from lehr_trainer.configs.optimizer import (
    AdamWConfig,
    EightBitAdamWConfig,
    MuonConfig,
    OptimizerConfig,
)
from lehr_trainer.optim.adamw import build_adamw
from lehr_trainer.optim.groups import set_lr_factor
from lehr_trainer.optim.schedule import lr_factor

__all__ = ["build_optimizer", "lr_factor", "set_lr_factor"]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the config's optimizer; each group has a ``name`` and a ``peak_lr``."""
    match config:
        case AdamWConfig():
            return build_adamw(model, config)
        case EightBitAdamWConfig():
            from lehr_trainer.optim.eight_bit import build_eight_bit

            return build_eight_bit(model, config)
        case MuonConfig():
            from lehr_trainer.optim.muon import build_muon

            return build_muon(model, config)
