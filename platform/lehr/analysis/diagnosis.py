"""Diagnose a run's curves: what was seen, since when, and what to try.

Each rule uses only recorded series, so it can be applied at any time and gives the same answer.
Rules prefer no alert to a false one: a sign must last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lehr.analysis.batches import DIGEST, EPOCH, agreement, repetition
from lehr.analysis.curve import Curve
from lehr.specs.gates import AlertCode

JUDGED = (
    "train/loss",
    "raw_ce_fp32",
    "loss_same_tokens",
    "val/loss",
    "train/grad_norm",
    "step_time_s",
    "data_wait_s",
    DIGEST,
    EPOCH,
)
"""The metrics that the rules read."""
EXACT = (DIGEST, EPOCH)
"""Those of them of which a rule needs every point, superseded ones included."""
MIN_POINTS = 20
"""With fewer points, a trend is noise."""
TOO_GOOD = 0.2
"""Nats by which the loss must be below its fp32 check: rounding explains a hundredth of it."""
LASTS = 3
"""Consecutive points that must show a sign, where points are rare (evaluations, fp32 checks)."""
DATA_SHARE = 0.05
"""Share of a step's time spent waiting for data that causes an alert; the loader's goal is 0.01."""


@dataclass(frozen=True)
class Alert:
    code: AlertCode
    """Name of the rule."""
    step: int
    """First step."""
    seen: str
    """What was seen, in words and figures."""
    advice: str
    """What to try."""

    @property
    def message(self) -> str:
        return f"{self.seen}. {self.advice}"


def diagnose(
    curves: Mapping[str, Curve], *, total_steps: int, warmup_steps: int = 0
) -> list[Alert]:
    """Return the alerts of a run, in order of the step at which each began.

    Args:
        curves: by metric name, of those in ``JUDGED``; what is missing is not judged.
        total_steps: how far the run is to go.
        warmup_steps: while the learning rate rises, loss and gradients may do anything.
    """
    run = _Run(curves, total_steps, warmup_steps)
    found = [
        Alert(code, sign.step, sign.seen, sign.advice)
        for code, rule in RULES.items()
        for sign in rule(run)
    ]
    return sorted(found, key=lambda alert: (alert.step, alert.code))


@dataclass(frozen=True)
class _Sign:
    """What a rule found: an alert without its name."""

    step: int
    seen: str
    advice: str


@dataclass(frozen=True)
class _Run:
    curves: Mapping[str, Curve]
    total_steps: int
    warmup_steps: int

    def after_warmup(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (steps, values) after the warmup, finite ones only; None if there are too few."""
        curve = self.curves.get(name)
        if curve is None:
            return None
        steps, values = np.asarray(curve.steps), np.asarray(curve.values, dtype=float)
        keep = np.isfinite(values) & (steps > self.warmup_steps)
        return (steps[keep], values[keep]) if keep.sum() >= MIN_POINTS else None


def _nan(run: _Run) -> Iterator[_Sign]:
    curve = run.curves.get("train/loss")
    if curve is None:
        return
    for step, value in zip(curve.steps, curve.values, strict=True):
        if not math.isfinite(value):
            yield _Sign(
                step,
                f"the loss became {value} at step {step:,}",
                "A lower learning rate, a longer warmup or tighter gradient clipping; in fp16, "
                "look for overflow",
            )
            return


def _too_good(run: _Run) -> Iterator[_Sign]:
    """Detect a low-precision loss that falls while the cross entropy in fp32 rises.

    The check covers a few sequences, so it is compared with the training's loss on the same ones.
    Where that was not logged, the loss of the whole batch is used, with an allowance for the
    spread between sequences.
    """
    check = run.curves.get("raw_ce_fp32")
    if check is None:
        return
    shown: dict[int, float] = {}
    for name in ("train/loss", "loss_same_tokens"):
        curve = run.curves.get(name)
        if curve is not None:
            shown |= zip(curve.steps, curve.values, strict=True)
    pairs = zip(check.steps, check.values, strict=True)
    gaps = [(step, exact - shown[step]) for step, exact in pairs if step in shown]
    limit = max(TOO_GOOD, 3 * _noise([gap for _, gap in gaps]))
    began, held, last = None, 0, 0.0
    for step, gap in gaps:
        if gap > limit:
            began, held, last = (step if held == 0 else began), held + 1, gap
        else:
            began, held = None, 0
    if began is not None and held >= LASTS:
        yield _Sign(
            began,
            f"the training loss has been under its fp32 check since step {began:,}, now by "
            f"{last:.2f}: the loss is too good to be true",
            "Compute the cross entropy in fp32, outside autocast (loss: chunked)",
        )


def _diverging(run: _Run) -> Iterator[_Sign]:
    after_warmup = run.after_warmup("train/loss")
    if after_warmup is None:
        return
    steps, values = after_warmup
    smooth = _rolling_median(values, max(5, len(values) // 20))
    lowest = int(np.argmin(smooth))
    # Relative to the noise of this curve, and at least a tenth of a nat.
    noise = float(np.median(np.abs(values - smooth))) * 1.4826
    limit = smooth[lowest] + max(0.1, 4 * noise)
    after = smooth[lowest + 1 :]
    if len(after) >= 5 and bool(np.all(after[-max(5, len(after) // 3) :] > limit)):
        first = int(steps[lowest + 1 + int(np.argmax(after > limit))])
        yield _Sign(
            first,
            f"the loss rose from {smooth[lowest]:.3f} to {smooth[-1]:.3f} since step {first:,}",
            "The learning rate is likely too high: try a half to a tenth of it",
        )


def _spikes(run: _Run) -> Iterator[_Sign]:
    after_warmup = run.after_warmup("train/loss")
    if after_warmup is None:
        return
    steps, values = after_warmup
    smooth = _rolling_median(values, 11)
    noise = max(float(np.median(np.abs(values - smooth))) * 1.4826, 1e-3)
    spiked = steps[(values - smooth > 10 * noise) & (values - smooth > 0.3)]
    if len(spiked) >= LASTS:
        yield _Sign(
            int(spiked[0]),
            f"the loss spiked {len(spiked)} times, last at step {int(spiked[-1]):,}",
            "A lower learning rate or beta2, a longer warmup, or skip-step",
        )


def _stagnant(run: _Run) -> Iterator[_Sign]:
    after_warmup = run.after_warmup("train/loss")
    if after_warmup is None:
        return
    steps, values = after_warmup
    # In the schedule's last part the rate is near its minimum, so a flat loss is expected.
    early = steps <= 0.7 * run.total_steps
    steps, values = steps[early], values[early]
    span = int(0.25 * run.total_steps)
    if len(values) < 2 * MIN_POINTS or steps[-1] - steps[0] < 2 * span:
        return
    recent, before = steps > steps[-1] - span, steps <= steps[-1] - span
    window = values[recent]
    if len(window) < MIN_POINTS or not before.any():
        return
    half = len(window) // 2
    first, second = window[:half], window[half:]
    error = math.sqrt(first.var() / len(first) + second.var() / len(second))
    fell = float(first.mean() - second.mean())
    if fell + 2 * error < 0.005 * float(window.mean()):
        began = int(steps[recent][0])
        yield _Sign(
            began,
            f"the loss has not fallen since step {began:,} ({window.mean():.3f})",
            "Check update/weight: under 1e-4 the learning rate is too low; otherwise the data "
            "or the model's size may be the limit",
        )


def _exploding(run: _Run) -> Iterator[_Sign]:
    after_warmup = run.after_warmup("train/grad_norm")
    if after_warmup is None:
        return
    steps, values = after_warmup
    part = len(values) // 4
    usual, now = float(np.median(values[part : 2 * part])), float(np.median(values[-part:]))
    if usual > 0 and now > 10 * usual:
        began = int(steps[-part])
        yield _Sign(
            began,
            f"the gradient norm before clipping went from {usual:.2g} to {now:.2g} by step "
            f"{began:,}",
            "A lower learning rate; see which group grows in the norms by group",
        )


def _overfitting(run: _Run) -> Iterator[_Sign]:
    validation, training = run.curves.get("val/loss"), run.curves.get("train/loss")
    if validation is None or training is None or len(validation) < LASTS + 1:
        return
    values = list(validation.values)
    lowest = min(range(len(values)), key=values.__getitem__)
    after = values[lowest + 1 :]
    rises = len(after) >= LASTS and all(b > a for a, b in zip(values[lowest:], after, strict=False))
    if not rises or values[-1] < 1.01 * values[lowest]:
        return
    began = validation.steps[lowest]
    at_best = [v for s, v in zip(training.steps, training.values, strict=True) if s <= began]
    if at_best and np.median(training.values[-LASTS:]) < np.median(at_best[-LASTS:]):
        yield _Sign(
            began,
            f"val/loss has risen from {values[lowest]:.3f} to {values[-1]:.3f} since step "
            f"{began:,} while train/loss fell",
            "More data or fewer epochs; the best checkpoint is kept",
        )


def _data_wait(run: _Run) -> Iterator[_Sign]:
    waits, times = run.after_warmup("data_wait_s"), run.after_warmup("step_time_s")
    if waits is None or times is None:
        return
    share = float(np.sum(waits[1][-MIN_POINTS:]) / max(np.sum(times[1][-MIN_POINTS:]), 1e-9))
    if share > DATA_SHARE:
        step = int(waits[0][-MIN_POINTS:][0])
        yield _Sign(
            step,
            f"{share:.0%} of a step is spent waiting for data",
            "More data.workers, or data.loading: preload",
        )


def _repeated_batches(run: _Run) -> Iterator[_Sign]:
    digests, epochs = run.curves.get(DIGEST), run.curves.get(EPOCH)
    if digests is None or epochs is None:
        return
    found = repetition(digests, epochs, lasts=LASTS)
    if found is not None:
        yield _Sign(
            found.step,
            f"step {found.step:,} had the same batch as step {found.earlier:,}, within one pass "
            f"over the corpus; {found.count:,} logged steps repeat a batch",
            "Look for copies in the corpus and for a change of the data order; the run learns "
            "from fewer tokens than it counts",
        )


def _other_data(run: _Run) -> Iterator[_Sign]:
    """Detect an attempt that trained on other batches at steps that an earlier one had taken.

    One step suffices: the digests of equal batches are always equal.
    """
    digests = run.curves.get(DIGEST)
    if digests is None:
        return
    differing = [agreement(digests, earlier).differs_from for earlier in digests.superseded]
    steps = [step for step in differing if step is not None]
    if steps:
        yield _Sign(
            min(steps),
            f"since a resume, the batch of step {min(steps):,} is another one than before it",
            "Compare version, seed, batch and data of the attempts. To train on other data on "
            "purpose, fork the run",
        )


def _noise(values: Sequence[float]) -> float:
    """Estimate the spread of a series about its trend, which may rise or jump, from differences."""
    found = np.abs(np.diff([value for value in values if math.isfinite(value)]))
    return float(np.median(found)) * 1.4826 / math.sqrt(2) if len(found) else 0.0


def _rolling_median(values: np.ndarray, width: int) -> np.ndarray:
    """Return the centred rolling median; the ends repeat the first and last value. Width is made
    odd.
    """
    width |= 1
    padded = np.pad(values, width // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.asarray(np.median(windows, axis=1))


RULES: dict[AlertCode, Callable[[_Run], Iterator[_Sign]]] = {
    "nan": _nan,
    "too_good": _too_good,
    "diverging": _diverging,
    "spikes": _spikes,
    "stagnant": _stagnant,
    "exploding": _exploding,
    "overfitting": _overfitting,
    "data_wait": _data_wait,
    "repeated_batches": _repeated_batches,
    "other_data": _other_data,
}
