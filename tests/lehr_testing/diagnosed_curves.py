"""Labelled curves of simulated runs: healthy families, and one illness put into a healthy run.

A run's seed decides all of it. Even seeds are to tune on, odd ones to report: their noise has heavier
tails, and their illnesses are weaker.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lehr.analysis.curve import Curve

REAL = Path(__file__).parents[1] / "data" / "diagnosed_runs.json.gz"
TIMES = ("step_time_s", "tokens_per_s", "data_wait_s")
"""Not judged in real runs but those made slow on purpose: other programs shared their machine."""
PARTS = ("embedding", "head", "first_layer", "last_layer")


@dataclass(frozen=True)
class Labelled:
    name: str
    """Family or illness."""
    seed: int
    curves: dict[str, Curve]
    total_steps: int
    warmup_steps: int
    label: tuple[str, ...] = ()
    """Names of alerts of which each is right; none for a healthy run."""
    began: int = 0
    """Step from which on it was ill."""
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


class Sim:
    """A healthy run in arrays, which a family or an illness changes before it becomes curves."""

    def __init__(self, seed: int, **options) -> None:
        self.rng = rng = np.random.default_rng(seed * 7919 + 13)
        self.heavy = bool(seed % 2)
        self.weak = 0.6 if self.heavy else 1.0
        """Factor of an illness's size beyond nothing."""
        self.points = int(options.get("points", rng.integers(400, 1000)))
        self.every = int(options.get("every", rng.choice([1, 1, 5, 10])))
        self.steps = np.arange(1, self.points + 1) * self.every
        self.total = int(self.steps[-1])
        self.warmup = int(self.total * rng.uniform(0.01, 0.06))
        self.first = float(options.get("first", rng.choice([6.2, 10.4, 11.8])))
        floor = options.get("floor", rng.uniform(0.15, 0.27) * self.first)
        self.alpha = options.get("alpha", rng.uniform(0.3, 0.8))
        scale = self.total * rng.uniform(0.005, 0.02)
        shape = (1 + self.steps / scale) ** -self.alpha
        self.trend = floor + (self.first - floor) * shape
        self.noise = options.get("noise", float(np.exp(rng.uniform(np.log(0.008), np.log(0.08)))))
        self.lr = self._schedule(options.get("schedule", rng.choice(["cosine", "wsd", "linear"])))
        self.noises = np.full(self.points, self.noise)
        self.trend_val = self.trend + 0.03
        self.val_noise = 0.002 * floor
        self.val_every = max(1, self.points // int(rng.integers(10, 25)))
        self.norm = (
            0.4
            + 3 * np.exp(-self.steps / (0.02 * self.total))
            + 0.3 * (1 - self.lr / self.lr.max()) * rng.uniform(0, 1)
        )
        self.step_time = 0.5 * np.ones(self.points)
        self.wait = 0.002 * rng.gamma(2, 0.5, self.points)
        self.memory = np.full(self.points, 2e10) * (1 + 0.002 * rng.normal(size=self.points))
        self.digest = rng.integers(0, 2**52, self.points).astype(float)
        self.epochs = rng.uniform(0.05, 0.9)
        self.superseded: tuple[Curve, ...] = ()
        self.ratio = 1e-3 * float(np.exp(rng.uniform(-1, 1.2)))
        self.part_norm = {part: rng.uniform(0.1, 0.5) for part in PARTS}
        self.part_shape = {part: np.ones(self.points) for part in PARTS}
        self.lie = np.zeros(self.points)
        self.changes: tuple[int, ...] = ()
        self.spiky = np.zeros(self.points)
        self.began = 0.0
        """Share of the run after which an illness began."""

    def _schedule(self, name) -> np.ndarray:
        done = self.steps / self.total
        up = np.minimum(1, self.steps / max(1, self.warmup))
        if name == "cosine":
            return up * (0.1 + 0.45 * (1 + np.cos(np.pi * done)))
        if name == "linear":
            return up * np.maximum(1 - done, 0.0)
        down = np.clip((done - 0.8) / 0.2, 0, 1)
        # The loss of WSD falls further as the rate decays.
        self.trend = self.trend - 0.04 * self.trend[-1] * down
        return up * (1 - down)

    def at(self, share: float) -> int:
        return int(share * self.points)

    def since(self, share: float) -> np.ndarray:
        """0 before, then the share of the run that has passed since."""
        return np.maximum(self.steps / self.total - share, 0.0)

    def spike(self, share: float, height: float, width: float) -> None:
        """A jump that decays within about ``width`` points; gradients jump too."""
        at = self.at(share)
        after = np.maximum(np.arange(self.points) - at, 0)
        shape = np.where(np.arange(self.points) >= at, np.exp(-after / width), 0.0)
        self.spiky = self.spiky + height * shape
        self.norm = self.norm * (1 + 3 * shape)

    def _errors(self, count: int) -> np.ndarray:
        if not self.heavy:
            return self.rng.normal(size=count)
        return self.rng.standard_t(5, count) / np.sqrt(5 / 3)

    def curves(self) -> dict[str, Curve]:
        rng, steps, n = self.rng, self.steps, self.points
        loss = self.trend + self.spiky + self.noises * self._errors(n)
        norms = self.norm * np.exp(0.12 * self._errors(n))
        times = self.step_time * np.exp(0.03 * np.abs(self._errors(n)))
        at_val = slice(self.val_every - 1, None, self.val_every)
        val = (self.trend_val + self.spiky)[at_val] + self.val_noise * self._errors(
            len(steps[at_val])
        )
        few = slice(max(1, n // 40) - 1, None, max(1, n // 40))
        exact = loss[few] + rng.normal(0, 0.35, len(loss[few]))
        found = {
            "train/loss": (steps, loss - self.lie),
            "train/lr": (steps, 3e-4 * self.lr),
            "train/grad_norm": (steps, norms),
            "val/loss": (steps[at_val], val),
            "raw_ce_fp32": (steps[few], exact),
            "loss_same_tokens": (
                steps[few],
                exact + rng.normal(0, 0.002, len(exact)) - self.lie[few],
            ),
            "step_time_s": (steps, times),
            "tokens_per_s": (steps, 1e6 / times),
            "data_wait_s": (steps, self.wait),
            "memory/allocated_bytes": (steps, self.memory),
            "data/epoch": (steps, self.epochs * steps / self.total),
        }
        for part in PARTS:
            shape = self.part_shape[part][few]
            wobble = np.exp(0.2 * self._errors(len(steps[few])))
            found[f"params/{part}/grad_norm"] = (
                steps[few],
                self.part_norm[part] * (self.norm / self.norm[-1])[few] * shape * wobble,
            )
            found[f"params/{part}/update_ratio"] = (
                steps[few],
                self.ratio * (0.3 if part == "embedding" else 1.0) * self.lr[few] * wobble + 1e-9,
            )
        curves = {name: Curve(s.tolist(), v.tolist()) for name, (s, v) in found.items()}
        curves["data/digest"] = Curve(steps.tolist(), self.digest.tolist(), self.superseded)
        return curves


Change = Callable[[Sim], None]

# --- healthy -----------------------------------------------------------------------------------


def _correlated_noise(sim: Sim) -> None:
    """Noise of neighbours is alike, as where documents of a source come together."""
    white = sim.rng.normal(size=sim.points)
    drift = np.zeros(sim.points)
    for at in range(1, sim.points):
        drift[at] = 0.8 * drift[at - 1] + 0.6 * white[at]
    sim.trend = sim.trend + 0.7 * sim.noise * drift


def _plain(sim: Sim) -> None:
    """Power law and schedule alone."""


def _shrinking_noise(sim: Sim) -> None:
    sim.noises = sim.noises * np.linspace(2, 0.7, sim.points)


def _uncertain_validation(sim: Sim) -> None:
    sim.val_noise *= 5


def _batch_ramp(sim: Sim) -> None:
    for share in (0.2, 0.45):
        sim.noises[sim.at(share) :] /= np.sqrt(2)
        sim.norm[sim.at(share) :] /= 1.3
        sim.trend[sim.at(share) :] -= 0.02 * (1 - np.exp(-sim.since(share)[sim.at(share) :] / 0.03))


def _one_spike(sim: Sim) -> None:
    sim.spike(sim.rng.uniform(0.25, 0.8), sim.rng.uniform(0.5, 3), sim.rng.uniform(2, 15))


def _two_spikes(sim: Sim) -> None:
    _one_spike(sim)
    _one_spike(sim)


def _resumed(sim: Sim) -> None:
    """Steps that an earlier attempt had taken too, with the same batches."""
    first, last = sim.at(0.4), sim.at(0.5)
    sim.superseded = (Curve(sim.steps[first:last].tolist(), sim.digest[first:last].tolist()),)
    sim.step_time[first : first + 3] *= 4


def _length_stage(sim: Sim) -> None:
    """Longer sequences make slower steps, and a bump in the loss that passes."""
    at = sim.at(0.7)
    sim.changes = (int(sim.steps[at]),)
    sim.step_time[at + 1 :] *= sim.rng.uniform(1.2, 2)
    sim.spike(0.7, 0.1, 0.03 * sim.points)
    sim.memory[at + 1 :] *= 1.2


def _norm_drifts_up(sim: Sim) -> None:
    sim.norm = sim.norm * (1 + 1.8 * (1 - sim.lr / sim.lr.max()) * sim.since(0.1))


def _epochs(sim: Sim) -> None:
    """Three passes: a small step down at each, and a validation that keeps falling."""
    sim.epochs = 3.0
    for share in (1 / 3, 2 / 3):
        sim.trend[sim.at(share) :] -= 0.03
    third = sim.points // 3
    order = sim.digest[:third]
    sim.digest = np.concatenate([order, sim.rng.permutation(order), sim.rng.permutation(order)])
    sim.digest = np.resize(sim.digest, sim.points)
    sim.digest[3 * third :] = sim.rng.integers(0, 2**52, sim.points - 3 * third)


def _hiccups(sim: Sim) -> None:
    """Slow steps at each checkpoint and evaluation, and a busy neighbour now and then."""
    sim.step_time[:: sim.rng.integers(10, 40)] *= sim.rng.uniform(2, 8)
    sim.step_time = sim.step_time * np.exp(0.1 * np.abs(sim.rng.normal(size=sim.points)))
    at = sim.rng.integers(sim.points // 3, sim.points - 60)
    sim.step_time[at : at + 12] *= 1.6
    sim.wait[:: sim.rng.integers(8, 30)] += 0.1


def _short(sim: Sim) -> None:
    """A run of fewer points; see ``HEALTHY``."""


def _wsd_flat(sim: Sim) -> None:
    """A slow power law in the stable phase."""


HEALTHY: dict[str, tuple[Change, dict]] = {
    "plain": (_plain, {}),
    "cosine, noisy": (_plain, {"schedule": "cosine", "noise": 0.15}),
    "linear, quiet": (_plain, {"schedule": "linear", "noise": 0.004}),
    "noise that shrinks": (_shrinking_noise, {}),
    "correlated noise": (_correlated_noise, {}),
    "uncertain validation": (_uncertain_validation, {}),
    "batch-size ramp": (_batch_ramp, {}),
    "one spike": (_one_spike, {}),
    "two spikes": (_two_spikes, {}),
    "resumed": (_resumed, {}),
    "sequence-length stage": (_length_stage, {}),
    "norms drift up": (_norm_drifts_up, {"schedule": "cosine"}),
    "three epochs": (_epochs, {}),
    "hiccups": (_hiccups, {}),
    "short": (_short, {"points": 80, "every": 1}),
    "wsd, slow": (_wsd_flat, {"schedule": "wsd", "alpha": 0.25}),
    "steep": (_plain, {"alpha": 1.0, "points": 1200}),
}

# --- ill ---------------------------------------------------------------------------------------


def _nan(sim: Sim, begin: float) -> None:
    sim.trend[sim.at(begin) :] = np.nan


def _diverges(sim: Sim, begin: float) -> None:
    sim.trend += sim.weak * np.minimum(
        sim.since(begin) * sim.rng.uniform(10, 60), sim.rng.uniform(1, 4)
    )


def _diverges_slowly(sim: Sim, begin: float) -> None:
    """A rise of 0.3 to 1 nat over the rest of the run."""
    sim.trend[sim.at(begin) :] = sim.trend[sim.at(begin)]
    sim.trend += sim.weak * sim.since(begin) / (1 - begin) * sim.rng.uniform(0.3, 1.0)


def _spikes_often(sim: Sim, begin: float) -> None:
    for share in np.linspace(begin, 0.95, int(sim.rng.integers(4, 9))):
        height = sim.weak * sim.rng.uniform(0.9, 3) + 6 * sim.noise
        sim.spike(share + sim.rng.uniform(-0.01, 0.01), height, 3)


def _oscillates(sim: Sim, begin: float) -> None:
    period = sim.rng.uniform(2, 12)
    size = sim.weak * max(4 * sim.noise, 0.03 * sim.trend[-1]) * sim.rng.uniform(1, 2)
    wave = size * np.cos(2 * np.pi * np.arange(sim.points) / period)
    sim.trend = sim.trend + wave * (sim.since(begin) > 0)


def _stagnates(sim: Sim, begin: float) -> None:
    sim.began = begin = min(begin, 0.3) * sim.rng.uniform(0.5, 1)
    sim.trend[sim.at(begin) :] = sim.trend[sim.at(begin)] - 0.01 * sim.since(begin)[sim.at(begin) :]


def _low_lr(sim: Sim, begin: float) -> None:
    sim.began = 0.0
    low = float(np.exp(sim.rng.uniform(np.log(1 / 2000), np.log(1 / 40))))
    sim.ratio *= low
    lasts = 1 - np.exp(-np.cumsum(sim.lr) / sim.lr.sum() * sim.rng.uniform(0.1, 0.3))
    sim.trend = sim.first * (1 - lasts)


def _explodes(sim: Sim, begin: float) -> None:
    sim.norm = sim.norm * np.minimum(np.exp(sim.since(begin) * sim.rng.uniform(8, 40)), 1e4)


def _explodes_slowly(sim: Sim, begin: float) -> None:
    sim.norm = sim.norm * (sim.weak * sim.rng.uniform(10, 20)) ** (sim.since(begin) / (1 - begin))


def _part_explodes(sim: Sim, begin: float) -> None:
    part = PARTS[int(sim.rng.integers(4))]
    factor = np.minimum(np.exp(sim.since(begin) * sim.rng.uniform(15, 40)), 1e3)
    sim.part_shape[part] = factor
    sim.norm = sim.norm * np.sqrt(1 + 0.05 * factor)


def _part_dies(sim: Sim, begin: float) -> None:
    part = PARTS[int(sim.rng.integers(4))]
    sim.began = begin = float(sim.rng.choice([0.0, begin]))
    sim.part_shape[part] = np.where(sim.steps / sim.total >= begin, 1e-7, 1.0)


def _overfits(sim: Sim, begin: float) -> None:
    sim.epochs = sim.rng.uniform(3, 10)
    sim.trend_val[sim.at(begin) :] = sim.trend_val[sim.at(begin)]
    sim.trend_val = sim.trend_val + sim.weak * sim.rng.uniform(0.3, 2) * sim.since(begin)
    sim.val_every = max(1, sim.points // 20)


def _memorizes(sim: Sim, begin: float) -> None:
    sim.epochs = sim.rng.uniform(8, 60)
    sim.trend = sim.trend * np.exp(-sim.since(begin) * sim.rng.uniform(2.5, 8))
    sim.val_every = max(1, sim.points // 20)


def _sees_targets(sim: Sim, begin: float) -> None:
    sim.began = 0.0
    sim.trend = 0.02 + sim.trend * np.exp(-sim.since(min(begin, 0.1)) * sim.rng.uniform(15, 40))
    sim.trend_val = sim.trend + 0.01
    sim.noises = sim.noises * sim.trend / sim.trend[0]


def _lies(sim: Sim, begin: float) -> None:
    sim.lie = np.minimum(sim.since(begin) * 10, sim.weak * sim.rng.uniform(0.2, 4))


def _waits(sim: Sim, begin: float) -> None:
    sim.wait[sim.at(begin) :] += (
        sim.weak * sim.rng.uniform(0.08, 0.3) * sim.rng.gamma(4, 0.25, sim.points - sim.at(begin))
    )


def _slows(sim: Sim, begin: float) -> None:
    sim.step_time[sim.at(begin) :] *= 1 + sim.weak * sim.rng.uniform(0.5, 1.5)


def _leaks(sim: Sim, begin: float) -> None:
    sim.began = 0.0
    sim.memory = sim.memory * (1 + sim.weak * sim.rng.uniform(0.3, 2) * sim.since(0.0))


def _repeats(sim: Sim, begin: float) -> None:
    at, back = sim.at(begin), int(sim.rng.integers(1, sim.at(0.15)))
    sim.digest[at : at + back] = sim.digest[at - back : at]
    if back < LEAST_REPEATED:
        sim.digest[at:] = sim.digest[at]


LEAST_REPEATED = 5


def _other_order(sim: Sim, begin: float) -> None:
    first, last = sim.at(begin), sim.at(begin + 0.05)
    other = sim.rng.integers(0, 2**52, last - first).astype(float)
    sim.superseded = (Curve(sim.steps[first:last].tolist(), other.tolist()),)


ILL: dict[str, tuple[Callable[[Sim, float], None], tuple[str, ...], dict]] = {
    "not finite": (_nan, ("nan",), {}),
    "diverges": (_diverges, ("diverging",), {}),
    "diverges slowly": (_diverges_slowly, ("diverging",), {}),
    "spikes": (_spikes_often, ("spikes",), {}),
    "oscillates": (_oscillates, ("oscillating",), {}),
    "stagnates": (_stagnates, ("stagnant",), {}),
    "rate too low": (_low_lr, ("low_lr",), {"noise": 0.03}),
    "gradients explode": (_explodes, ("exploding",), {}),
    "gradients grow": (_explodes_slowly, ("exploding",), {}),
    "a part explodes": (_part_explodes, ("exploding_part", "exploding"), {}),
    "a part is dead": (_part_dies, ("dead_part",), {}),
    "overfits": (_overfits, ("overfitting",), {}),
    "memorizes": (_memorizes, ("memorization",), {}),
    "sees its targets": (_sees_targets, ("implausible",), {}),
    "loss too good": (_lies, ("too_good",), {}),
    "waits for data": (_waits, ("data_wait",), {}),
    "slows down": (_slows, ("slowdown",), {}),
    "memory leak": (_leaks, ("memory_creep",), {}),
    "repeated batches": (_repeats, ("repeated_batches",), {}),
    "other order": (_other_order, ("other_data",), {}),
}


def healthy(name: str, seed: int) -> Labelled:
    change, options = HEALTHY[name]
    sim = Sim(seed + 1000 * (1 + [*HEALTHY].index(name)), **options)
    change(sim)
    return Labelled(
        name, seed, sim.curves(), sim.total, sim.warmup, tuned=seed % 2 == 0, changes=sim.changes
    )


def ill(name: str, seed: int) -> Labelled:
    change, label, options = ILL[name]
    sim = Sim(seed + 100_000 + 1000 * [*ILL].index(name), **options)
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


def simulated(seeds: range) -> Iterator[Labelled]:
    for seed in seeds:
        for name in HEALTHY:
            yield healthy(name, seed)
        for name in ILL:
            yield ill(name, seed)


def without(run: Labelled, *names: str) -> Labelled:
    """The run as a tool that logs less would have recorded it."""
    return replace(run, curves={k: v for k, v in run.curves.items() if not k.startswith(names)})
