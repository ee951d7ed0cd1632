"""Anomalies of runs: what each changes in a simulated run, and the alerts that find it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lehr.analysis.curve import Curve
from lehr_testing.simulated_curves import PARTS, Sim

LEAST_REPEATED = 5


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


def _one_rank_slows(sim: Sim, begin: float) -> None:
    slower = sim.weak * sim.rng.uniform(0.25, 0.6)
    sim.rank_times[sim.at(begin) :, int(sim.rng.integers(8))] += slower
    sim.step_time[sim.at(begin) :] *= 1 + slower


def _leaks(sim: Sim, begin: float) -> None:
    sim.began = 0.0
    sim.memory = sim.memory * (1 + sim.weak * sim.rng.uniform(0.3, 2) * sim.since(0.0))


def _repeats(sim: Sim, begin: float) -> None:
    at, back = sim.at(begin), int(sim.rng.integers(1, sim.at(0.15)))
    sim.digest[at : at + back] = sim.digest[at - back : at]
    if back < LEAST_REPEATED:
        sim.digest[at:] = sim.digest[at]


def _other_order(sim: Sim, begin: float) -> None:
    first, last = sim.at(begin), sim.at(begin + 0.05)
    other = sim.rng.integers(0, 2**52, last - first).astype(float)
    sim.superseded = (Curve(sim.steps[first:last].tolist(), other.tolist()),)


def _leaves_at_once(sim: Sim) -> tuple[np.ndarray, float]:
    """Let the loss jump within the first five points; return the points since, and the height."""
    sim.began = 0.0
    jump = int(sim.rng.integers(1, 5))
    since = np.arange(sim.points) - jump
    sim.trend[:jump] = sim.first
    sim.norm = sim.norm * np.where(since < 0, 1.0, 3.0)
    return since, sim.first * sim.weak * float(np.exp(sim.rng.uniform(np.log(0.5), np.log(8))))


def _diverges_at_once(sim: Sim, begin: float) -> None:
    """The loss jumps, and stays where it is."""
    since, height = _leaves_at_once(sim)
    sim.trend[since >= 0] = sim.first + height


def _falls_back_to_a_plateau(sim: Sim, begin: float) -> None:
    """The loss jumps, and falls back to about what the frequency of tokens alone gives."""
    since, height = _leaves_at_once(sim)
    lasts = sim.rng.uniform(8, 0.15 * sim.points)
    level = sim.first * sim.rng.uniform(0.55, 0.95)
    fall = level + (sim.first + height - level) * np.exp(-since / lasts)
    sim.trend = np.where(since < 0, sim.trend, fall)


def _falls_back_and_learns(sim: Sim, begin: float) -> None:
    """The loss jumps, falls back, and then falls as that of a healthy run."""
    since, height = _leaves_at_once(sim)
    lasts = sim.rng.uniform(12, 0.1 * sim.points)
    sim.trend += np.where(since < 0, 0.0, (sim.first + height) * np.exp(-since / lasts))


def _turned(sim: Sim, trend: np.ndarray, least: float, most: float) -> np.ndarray:
    """A loss that turns up somewhere in the run, and climbs by a share until the end."""
    sim.began = begin = sim.rng.uniform(0.2, 0.8)
    turned = trend.copy()
    turned[sim.at(begin) :] = turned[sim.at(begin)]
    climbs = (sim.since(begin) / (1 - begin)) ** sim.rng.uniform(1, 1.5)
    share = float(np.exp(sim.rng.uniform(np.log(least), np.log(most))))
    return turned * (1 + share * climbs if sim.rng.random() < 0.5 else (1 + share) ** climbs)


def _climbs(sim: Sim, begin: float) -> None:
    """A rise by 2 to 30 %, with or without gradients that grow."""
    sim.trend = _turned(sim, sim.trend, 0.02, 0.3)
    sim.trend_val = sim.trend + 0.03
    sim.norm = sim.norm * sim.rng.choice([1, 3]) ** sim.since(sim.began)


def _leaves_training(sim: Sim, begin: float) -> None:
    """A validation that rises by 1 to 15 % while the training falls on."""
    sim.epochs = sim.rng.uniform(2, 10)
    sim.trend_val = _turned(sim, sim.trend_val, 0.01, 0.15)
    at = sim.at(sim.began)
    sim.trend[at:] -= sim.rng.uniform(0, 0.9) * (sim.trend[at:] - sim.trend[at])


ANOMALIES: dict[str, tuple[Callable[[Sim, float], None], tuple[str, ...], dict]] = {
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
    "one rank is slow": (_one_rank_slows, ("straggler",), {}),
    "memory leak": (_leaks, ("memory_creep",), {}),
    "repeated batches": (_repeats, ("repeated_batches",), {}),
    "other order": (_other_order, ("other_data",), {}),
    "diverges at once": (_diverges_at_once, ("diverging",), {}),
    "at once, to a plateau": (_falls_back_to_a_plateau, ("diverging",), {}),
    "at once, and learns": (_falls_back_and_learns, ("diverging",), {}),
    "climbs": (_climbs, ("diverging",), {"wide": True}),
    "leaves training": (_leaves_training, ("overfitting",), {"wide": True}),
}
