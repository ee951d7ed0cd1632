"""What to write in a spec for the best MFU that the GPU bench has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments.rows import BenchRow

_FIELDS = (
    "attention",
    "activation_checkpointing",
    "compile",
    "loss",
    "parallel",
    "precision",
)
"""Parts of the config that decide the speed of a model, besides the micro-batch."""


def advice(mfu: Mapping[str, float], rows: Mapping[str, BenchRow]) -> list[str]:
    """Return a sentence with the lines of a spec; empty if no row has an MFU.

    Only rows in bf16 with a loss and a residual stream that a training may use count: MFU is a
    share of bf16's peak. ``mfu``: in percent, by the key of a row.
    """
    usable = {key: reached for key, reached in mfu.items() if _usable(rows[key])}
    if not usable:
        return []
    key = max(usable, key=lambda name: usable[name])
    lines = yaml.safe_dump(
        changes(rows[key]), default_flow_style=True, sort_keys=False, width=math.inf
    ).strip()
    return [f"Best MFU of all rows: {usable[key]:.1f} % ({key}). In the spec: train: {lines}"]


def _usable(row: BenchRow) -> bool:
    config = row.config
    return (
        # Its rows have other lengths.
        row.table != "context"
        and config["precision"]["compute"] == "bf16"
        and config["precision"]["fp8"]["recipe"] == "none"
        and config["precision"]["residual"] == "fp32"
        and config["loss"]["name"] not in {"in_autocast", "bf16_softmax"}
    )


def changes(row: BenchRow) -> dict[str, Any]:
    """Return what the row's config has that a spec has not by default, besides its size."""
    default = TrainConfig.model_validate(
        {key: row.config[key] for key in ("model", "data", "batch", "steps")}
    ).model_dump(mode="json")
    found: dict[str, Any] = {}
    micro_batch = row.config["batch"]["micro_batch"]
    if micro_batch is not None:
        found["batch"] = {"micro_batch": micro_batch}
    for name in _FIELDS:
        changed = {
            key: value for key, value in row.config[name].items() if value != default[name][key]
        }
        if changed:
            found[name] = changed
    return found
