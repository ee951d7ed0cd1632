"""A small campaign, and trials of it that ended as a law says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lehr.analysis.lr_rules import setting_of
from lehr.control.campaign_record import NextTrial, TrialState, rung_of
from lehr.control.lifecycle import RunState
from lehr.control.search import TrialReport
from lehr.specs import RunSpec, SweepSpec, load_spec
from lehr.specs.sweep_expand import trials_at
from lehr.store import Store
from lehr.store.records.trial_rows import TrialRows
from lehr.store.tables import SweepRow
from lehr_testing import laws

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


def recorded(store: Store, **changes: Any) -> SweepRow:
    """A campaign with nine trials, of three rungs, that ended as a law says."""
    spec, rates = campaign(**changes), (1e-3, 3e-3, 9e-3)
    points = [
        {**point, LR: rate, spec.seed_path: 0} for point in spec.rung_points()[:3] for rate in rates
    ]
    sweep = store.sweeps.create(spec, TrialRows(trials_at(spec, points)))
    for run in store.sweeps.runs(sweep.id):
        train = RunSpec.model_validate(run.spec).own
        size, away = setting_of(train), math.log2(train.optimizer.lr / 2e-3)
        loss = 1.5 + 40 / size.non_embedding**0.3 + 60 / size.tokens**0.35 + 0.03 * away**2
        laws.end(store, run, loss)
    return sweep


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
