"""A small campaign, and trials of it that ended as a law says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lehr.control.campaigns import NextTrial, TrialState, rung_of
from lehr.control.lifecycle import RunState
from lehr.control.search import TrialReport
from lehr.specs import SweepSpec, load_spec

LR = "train.optimizer.lr"
TARGET: dict[str, Any] = {
    "train": {
        "model": "tiny",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 16, "sequence_length": 128},
        "steps": 4000,
        "validation": {"tokens": 16_384},
    },
    "resources": {"gpus": 1},
}


def campaign(**changes: Any) -> SweepSpec:
    data = {"kind": "campaign", "name": "c", "target": TARGET, "budget": {"gpu_hours": 1.0}}
    spec = load_spec({**data, **changes})
    assert isinstance(spec, SweepSpec)
    return spec


def queued(spec: SweepSpec, chosen: NextTrial, number: int) -> TrialState:
    assert chosen.point is not None
    return TrialState(number, chosen.point, f"r{number}", RunState.QUEUED, limit_s=chosen.limit_s)


def ended(spec: SweepSpec, trial: TrialState, **changes: Any) -> TrialState:
    """A trial that has completed, with the loss and at the cost of a law."""
    assert spec.campaign is not None
    rung = spec.campaign.rungs[rung_of(spec.campaign, trial)]
    best = 1e-3 * math.sqrt(256 / rung.width)
    away = math.log2(float(trial.parameters[LR]) / best)
    loss = 1.5 + 40 / rung.non_embedding**0.3 + 60 / rung.tokens**0.35 + 0.03 * away**2
    seconds = rung.flops / 2e11
    done: dict[str, Any] = {
        "state": RunState.COMPLETED,
        "attempt": 1,
        "ended_at": float(trial.number),
        "total_steps": 100,
        "reports": (TrialReport(100, loss, float(trial.number)),),
        "hours": (15.0 + seconds) / 3600,
        "living_hours": None,
        "steps_s": seconds,
    }
    return dataclasses.replace(trial, **{**done, **changes})
