"""Finished sweeps of rates at several widths, whose losses follow a law."""

from __future__ import annotations

import math
from typing import Any

from lehr.control.lifecycle import RunState
from lehr.specs import SweepSpec, load_spec
from lehr.store import Store
from lehr.store.tables import RunRow
from lehr_testing import seeding

RATE = "train.optimizer.lr"
TOKENS = 16 * 128
WIDTHS, RATES = (64, 128, 256), (3e-4, 1e-3, 3e-3)


def model(width: int) -> dict[str, Any]:
    return {"preset": "tiny", "hidden_size": width, "intermediate_size": 3 * width}


def train(width: int, **changes: Any) -> dict[str, Any]:
    batch = {"sequences": 16, "sequence_length": 128}
    steps = {"steps": 40 * width // 64}
    data = {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"}
    return seeding.train(
        **{"model": model(width), "batch": batch, "data": data, **steps, **changes}
    )


def end(store: Store, run: RunRow, loss: float, *, held_out: str = seeding.HELD_OUT) -> None:
    attempt = seeding.start(store, run)
    attempt.held_out = held_out
    attempt.started()
    attempt.evaluate(run.spec["train"]["steps"], loss)
    attempt.flush()
    attempt.end(RunState.COMPLETED, run.spec["train"]["steps"])


def swept(store: Store, width: int) -> str:
    """A sweep of rates at one width; its losses are those of a law with exponents of 0.4."""
    spec = load_spec(
        {
            "kind": "sweep",
            "name": f"w{width}",
            "metric": {"name": "val/loss", "goal": "minimize"},
            "parameters": {RATE: {"values": list(RATES)}},
            "run": {"train": train(width)},
        }
    )
    assert isinstance(spec, SweepSpec)
    sweep, runs = seeding.create_sweep(store, spec)
    for run in runs:
        end(store, run, loss(width, run.spec["train"]["optimizer"]["lr"]))
    return sweep.id


def loss(width: int, rate: float) -> float:
    """What a run of this width ends at; sizes and tokens follow from the width."""
    return 1.5 + 2.0 * (64 / width) ** 0.8 + 0.05 * math.log2(rate / (1e-3 * 64 / width)) ** 2
