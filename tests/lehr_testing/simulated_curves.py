"""A simulated healthy run in arrays, from which curves are made."""

from __future__ import annotations

import numpy as np

from lehr.analysis.curve import Curve

PARTS = ("embedding", "head", "first_layer", "last_layer")


class Sim:
    """A healthy run in arrays, which a family or an anomaly changes before it becomes curves."""

    def __init__(self, seed: int, **options) -> None:
        self.rng = rng = np.random.default_rng(seed * 7919 + 13)
        self.heavy = bool(seed % 2)
        self.weak = 0.6 if self.heavy else 1.0
        """Factor of an anomaly's size beyond nothing."""
        few, most = (100, 1500) if options.get("wide") else (400, 1000)
        self.points = int(options.get("points", rng.integers(few, most)))
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
        self.rank_times = np.full((self.points, 8), 0.8)
        """Of eight ranks, each one's own part of a healthy step."""
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
        """Share of the run after which an anomaly began."""
        if options.get("wide"):
            self._widen(**options)

    def _widen(self, noise: float | None = None, **_) -> None:
        """Draw the noise, how heavy its tails are, and the evaluations from wide ranges."""
        rng = self.rng
        self.noise = noise or float(np.exp(rng.uniform(np.log(0.005), np.log(0.05))))
        self.noises = self.noise * np.exp(rng.uniform(0, 0.6) * rng.normal(size=self.points))
        self.val_every = max(1, self.points // int(rng.integers(8, 61)))
        self.val_noise = self.trend[-1] * float(np.exp(rng.uniform(np.log(5e-4), np.log(5e-3))))

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
        chips = 1 + 0.02 * rng.normal(size=8)
        own = self.rank_times * chips * np.exp(0.01 * rng.normal(size=self.rank_times.shape))
        own *= 0.5  # Seconds of a healthy step.
        found["ranks/max_own_time_s"] = (steps, own.max(1))
        found["ranks/median_own_time_s"] = (steps, np.sort(own)[:, 3])
        found["ranks/slowest"] = (steps, own.argmax(1))
        curves = {name: Curve(s.tolist(), v.tolist()) for name, (s, v) in found.items()}
        curves["data/digest"] = Curve(steps.tolist(), self.digest.tolist(), self.superseded)
        return curves
