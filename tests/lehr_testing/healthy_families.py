"""Families of healthy runs: what each changes in a simulated run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lehr.analysis.curve import Curve
from lehr_testing.simulated_curves import Sim

Change = Callable[[Sim], None]


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


def _trained_weights(sim: Sim) -> None:
    """A low first loss, which rises a little as the rate warms up again, and then falls."""
    hump = sim.rng.uniform(0.02, 0.06) * sim.first
    done = sim.steps / sim.total
    sim.trend = sim.first * (1 - 0.12 * done**0.5) + hump * np.exp(-done / 0.08) * np.minimum(
        1, sim.steps / sim.warmup
    )


def _early_spike(sim: Sim) -> None:
    """A spike while the loss is still near that of untrained weights, higher than it."""
    sim.spike(sim.rng.uniform(0.005, 0.02), 0.4 * sim.first, sim.rng.uniform(1, 3))


def _low_first_batch(sim: Sim) -> None:
    """Small batches: the first one happens to be easy."""
    sim.trend[0] -= sim.noise * sim.rng.uniform(2, 3)


def _flat_validation(sim: Sim) -> None:
    """A validation that stays where it is, and wobbles by its noise, while the training falls on."""
    at = sim.at(sim.rng.uniform(0.2, 0.8))
    sim.trend_val[at:] = sim.trend_val[at]


def _slow_bumps(sim: Sim) -> None:
    """Up to three bumps, each up within a 50th of the run and down within an eighth."""
    for share in sim.rng.uniform(0.2, 0.95, sim.rng.integers(1, 4)):
        up, down = sim.rng.uniform(0.002, 0.02), sim.rng.uniform(0.01, 0.04)
        shape = np.minimum(sim.since(share) / up, 1) * np.exp(-sim.since(share + up) / down)
        sim.spiky = sim.spiky + sim.rng.uniform(0.01, 0.2) * sim.trend[-1] * shape


def _other_mix(sim: Sim) -> None:
    """Other data from some step on: both losses step, each its own way, and settle."""
    share, lasts = sim.rng.uniform(0.2, 0.8), sim.rng.uniform(0.02, 0.06)
    shape = np.where(sim.since(share) > 0, np.exp(-sim.since(share) / lasts), 0.0)
    sim.trend *= 1 + sim.rng.uniform(-0.05, 0.05) * shape
    sim.trend_val *= 1 + sim.rng.uniform(-0.02, 0.02) * shape


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
    "trained weights": (_trained_weights, {"first": 2.6, "noise": 0.03}),
    "early spike": (_early_spike, {}),
    "easy first batch": (_low_first_batch, {"noise": 0.3}),
    "flat validation": (_flat_validation, {"wide": True}),
    "wsd, slower": (_wsd_flat, {"wide": True, "schedule": "wsd", "alpha": 0.15}),
    "slow bumps": (_slow_bumps, {"wide": True}),
    "other mix": (_other_mix, {"wide": True}),
    "small batches": (_correlated_noise, {"wide": True, "noise": 0.25}),
}
