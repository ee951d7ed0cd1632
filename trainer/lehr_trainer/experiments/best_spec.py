"""What to write in a spec for the best MFU that the GPU bench has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments.case import Case

_FIELDS = (
    "attention",
    "activation_checkpointing",
    "compile",
    "loss",
    "parallel",
    "precision",
)
"""Parts of the config that decide the speed of a model, besides the micro-batch."""

Figures = Mapping[str, float | str | None]


def advice(figures: Mapping[str, Figures], cases: Mapping[str, Case]) -> list[str]:
    """Return a sentence with the lines of a spec; empty if no row has an MFU.

    Only rows in bf16 with a loss and a residual stream that a training may use count: MFU is a
    share of bf16's peak.
    """
    best = None
    for key, values in figures.items():
        reached = values.get("mfu")
        if not isinstance(reached, float) or not _usable(key, cases[key]):
            continue
        if best is None or reached > best[1]:
            best = key, reached
    if best is None:
        return []
    key, reached = best
    lines = yaml.safe_dump(
        changes(cases[key]), default_flow_style=True, sort_keys=False, width=math.inf
    ).strip()
    return [f"Best MFU of all rows: {reached:.1f} % ({key}). In the spec: train: {lines}"]


def _usable(key: str, case: Case) -> bool:
    config = case.config
    return (
        # Its rows have other lengths.
        not key.startswith("context/")
        and config["precision"]["compute"] == "bf16"
        and config["precision"]["fp8"]["recipe"] == "none"
        and config["precision"]["residual"] == "fp32"
        and config["loss"]["name"] not in {"in_autocast", "bf16_softmax"}
    )


def changes(case: Case) -> dict[str, Any]:
    """Return what the row's config has that a spec has not by default, besides its size."""
    default = TrainConfig.model_validate(
        {key: case.config[key] for key in ("model", "data", "batch", "steps")}
    ).model_dump(mode="json")
    found: dict[str, Any] = {}
    micro_batch = case.config["batch"]["micro_batch"]
    if micro_batch is not None:
        found["batch"] = {"micro_batch": micro_batch}
    for name in _FIELDS:
        changed = {
            key: value for key, value in case.config[name].items() if value != default[name][key]
        }
        if changed:
            found[name] = changed
    return found
