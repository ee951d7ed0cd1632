"""Labelled curves: simulated healthy runs, simulated runs with one anomaly, and real runs.

A run's seed decides all of it. Even seeds are to tune on, odd ones to report: their noise has heavier
tails, and their anomalies are weaker.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lehr.analysis.curve import Curve
from lehr_testing.anomalies import ANOMALIES
from lehr_testing.healthy_families import HEALTHY
from lehr_testing.simulated_curves import Sim

REAL = Path(__file__).parents[1] / "data" / "diagnosed_runs.json.gz"
TIMES = ("step_time_s", "tokens_per_s", "data_wait_s")
"""Not judged in real runs but those made slow on purpose: other programs shared their machine."""


@dataclass(frozen=True)
class Labelled:
    name: str
    """Family or anomaly."""
    seed: int
    curves: dict[str, Curve]
    total_steps: int
    warmup_steps: int
    label: tuple[str, ...] = ()
    """Names of alerts of which each is right; none for a healthy run."""
    began: int = 0
    """The first step with the anomaly."""
    tuned: bool = False
    """Whether thresholds were chosen on it."""
    changes: tuple[int, ...] = ()
    real: bool = False

    def until(self, step: int) -> dict[str, Curve]:
        """Return the curves as they were after ``step`` steps."""
        return {name: _cut(curve, step) for name, curve in self._arrays.items()}

    @cached_property
    def _arrays(self) -> dict[str, Curve]:
        """The curves as arrays, of which a part is no copy."""
        return {
            name: Curve(np.asarray(c.steps), np.asarray(c.values), c.superseded)
            for name, c in self.curves.items()
        }


def _cut(curve: Curve, step: int) -> Curve:
    end = int(np.searchsorted(curve.steps, step, "right"))
    lost = tuple(
        Curve(part.steps, part.values) for part in curve.superseded if part.steps[0] <= step
    )
    return Curve(curve.steps[:end], curve.values[:end], lost)


def healthy(name: str, seed: int) -> Labelled:
    change, options = HEALTHY[name]
    sim = Sim(seed + 1000 * (1 + [*HEALTHY].index(name)), **options)
    change(sim)
    return Labelled(
        name, seed, sim.curves(), sim.total, sim.warmup, tuned=seed % 2 == 0, changes=sim.changes
    )


def anomalous(name: str, seed: int) -> Labelled:
    change, label, options = ANOMALIES[name]
    sim = Sim(seed + 100_000 + 1000 * [*ANOMALIES].index(name), **options)
    sim.began = begin = float(sim.rng.uniform(0.25, 0.55))
    change(sim, begin)
    return Labelled(
        name,
        seed,
        sim.curves(),
        sim.total,
        sim.warmup,
        label,
        int(sim.began * sim.total),
        tuned=seed % 2 == 0,
    )


def real_runs() -> Iterator[Labelled]:
    """Yield runs of the real trainer; tests/bench/diagnosis_runs.py trains them."""
    for name, run in json.loads(gzip.decompress(REAL.read_bytes())).items():
        curves = {
            metric: _real_curve(*series)
            for metric, series in run["curves"].items()
            if metric not in TIMES or "slowdown" in run["label"]
        }
        family, _, seed = name.rpartition(", seed ")
        yield Labelled(
            family,
            int(seed),
            curves,
            run["steps"],
            run["warmup"],
            tuple(run["label"]),
            tuned=run["tuned"],
            changes=tuple(run["changes"]),
            real=True,
        )


def _real_curve(steps, values, lost_steps, lost_values) -> Curve:
    lost = (Curve(lost_steps, [float(v) for v in lost_values]),) if lost_steps else ()
    return Curve(steps, [float(v) for v in values], lost)


def simulated(seeds: range, names: Collection[str]) -> Iterator[Labelled]:
    for seed in seeds:
        yield from (healthy(name, seed) for name in HEALTHY if name in names)
        yield from (anomalous(name, seed) for name in ANOMALIES if name in names)


def without(run: Labelled, *names: str) -> Labelled:
    """The run as a tool that logs less would have recorded it."""
    return replace(run, curves={k: v for k, v in run.curves.items() if not k.startswith(names)})
