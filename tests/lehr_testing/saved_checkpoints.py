"""Small checkpoints in the folder of an attempt."""

from __future__ import annotations

from pathlib import Path

import torch

from lehr_trainer.checkpointing.checkpoint import Manifest, write_checkpoint
from lehr_trainer.contract import layout

TENSORS = {
    "model": {
        "a": torch.arange(12.0).reshape(3, 4),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "half": torch.randn(5, dtype=torch.bfloat16),
        "strided": torch.arange(12).reshape(3, 4).t(),
    },
    "optimizer": {"a/exp_avg": torch.ones(3, 4)},
}


def save(folder: Path, step: int = 1, **manifest: object) -> Path:
    values = {"step": step, "tokens": 10 * step, "reason": "interval", **manifest}
    target = layout.checkpoint_dir(folder, step)
    write_checkpoint(
        target,
        tensors=TENSORS,
        documents={"state": {"step": step}},
        manifest=Manifest.model_validate(values),
    )
    return target


def attempt(run_dir: Path, number: int) -> Path:
    folder = layout.attempt_dir(run_dir, number)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
