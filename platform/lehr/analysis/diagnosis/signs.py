"""What diagnosis rules read and return, their register, and the statistics that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lehr.analysis.curve import Curve
from lehr.specs.gates import AlertCode

LOSS, VAL_LOSS, LR = "train/loss", "val/loss", "train/lr"
GRAD_NORM = "train/grad_norm"
PARTS = ("embedding", "head", "first_layer", "last_layer")
"""Parts of a model of which the trainer logs ``params/<part>/{grad_norm,update_ratio}``."""
MIN_POINTS = 20  # With fewer points, a trend is noise.
LASTS = 3
"""Consecutive points that must show a sign, where points are rare (evaluations, fp32 checks)."""

UNTRAINED_WIDTH = 9  # Points of which most must be above the loss of untrained weights.
UNTRAINED_SHARE = 0.1  # Share of the first loss by which they must be above it.
MOST_NOISE = 12.0
"""Nats beyond which noise does not raise this limit: about the loss of untrained weights."""

LEAST_BITS = 0.3
"""Bits per byte that no model of text attains. Shannon 1951 (Prediction and Entropy of Printed
English) bounds English by 0.6 bits a character; Deletang et al. 2023 (arXiv:2309.10668) measure
0.66 bits a byte for Chinchilla 70B on Wikipedia. Half of it leaves room for source code."""
BYTE_VOCABULARY, LARGE_VOCABULARY = math.log(256), math.log(131_072)
BYTES_PER_TOKEN = 4.3  # Of the large vocabulary, on English text; between the two by the logarithm.

Sureness = Literal["certain", "likely", "possible"]
"""certain: the records themselves prove it. likely: nearly all such alerts on labelled curves were
right. possible: healthy runs can look like this too. docs/judgement.md has the figures."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sign:
    """What a rule found: an alert without the name of the rule."""

    step: int  # First step.
    seen: str  # What was seen, in words and figures.
    advice: str  # What to try, with a factor where there is one.
    sure: Sureness = "likely"
    cause: str = ""  # The usual cause.
    source: str = ""  # Where the criterion comes from; empty if it is a definition.
    last: int | None = None
    """Of a sign that occurs again: the first step after the last point before its last occurrence,
    which may have begun there."""


@dataclass(frozen=True)
class Loss:
    """Something that a run did and that is not on record."""

    step: int  # The first step that is lost, or the last one on record.
    seen: str


@dataclass(frozen=True)
class Places:
    """Where the newest attempt trains."""

    after: int = 0  # The step from which it started.
    ranks: tuple[str, ...] = ()  # Node and GPU of each rank; empty if that is not known.


Rule = Callable[["DiagnosedRun"], Iterator[Sign]]
MetricGroups = tuple[tuple[str, ...], ...]


class Needs(NamedTuple):
    """What a rule needs to judge a run: see ``rule``."""

    metrics: MetricGroups
    points: int
    after_warmup: bool
    length: bool


REGISTERED: dict[AlertCode, tuple[Rule, Needs]] = {}
"""By the name of its alert: a rule, and what it needs."""


def rule(
    code: AlertCode,
    *needs: tuple[str, ...],
    points: int = 1,
    after_warmup: bool = False,
    length: bool = False,
) -> Callable[[Rule], Rule]:
    """Register a rule.

    It needs one metric of each group of ``needs``, by default the loss, and so many ``points`` of
    the last group, ``after_warmup`` without those of the warmup. With ``length`` it does not judge
    without the run's number of steps.
    """

    def register(found: Rule) -> Rule:
        REGISTERED[code] = found, Needs(needs or ((LOSS,),), points, after_warmup, length)
        return found

    return register


@dataclass(frozen=True)
class FiniteCurve:
    """The finite points of a metric, as arrays of equal length."""

    steps: NDArray[np.int64]
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def where(self, keep: NDArray[np.bool_]) -> FiniteCurve:
        return FiniteCurve(self.steps[keep], self.values[keep])

    def last(self, count: int) -> FiniteCurve:
        return FiniteCurve(self.steps[-count:], self.values[-count:])

    def until(self, step: int) -> FiniteCurve:
        return self.where(self.steps <= step)


EMPTY = FiniteCurve(np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class DiagnosedRun:
    curves: Mapping[str, Curve]
    total_steps: int | None  # None if it is not known.
    warmup_steps: int = 0
    changes: tuple[int, ...] = ()
    """Steps after which the shape of a batch changes on purpose, and with it the time of a step."""
    losses: tuple[Loss, ...] = ()
    places: Places = Places()

    @property
    def least_steps(self) -> int:
        """Return the number of steps, or the last logged one if the number is not known."""
        if self.total_steps is not None:
            return self.total_steps
        return max(
            (int(curve.steps[-1]) for curve in self.curves.values() if len(curve)), default=0
        )

    def series(self, name: str) -> FiniteCurve:
        """Return the finite points of a metric; none if it was not logged."""
        curve = self.curves.get(name)
        if curve is None:
            return EMPTY
        steps, values = np.asarray(curve.steps, np.int64), np.asarray(curve.values, np.float64)
        keep = np.isfinite(values)
        return FiniteCurve(steps, values) if keep.all() else FiniteCurve(steps[keep], values[keep])

    def after_warmup(self, name: str, least: int = MIN_POINTS) -> FiniteCurve:
        """Return the finite points after the warmup; none if there are fewer than ``least``."""
        series = self.series(name)
        series = series.where(series.steps > self.warmup_steps)
        return series if len(series) >= least else EMPTY

    def parts(self, what: str) -> dict[str, FiniteCurve]:
        """Return ``params/<part>/<what>`` after the warmup by part: the usual ones, and others."""
        names = [f"params/{part}/{what}" for part in PARTS]
        names += [
            name
            for name in self.curves
            if name.startswith("params/") and name.endswith(f"/{what}") and name not in names
        ]
        found = {
            name.removeprefix("params/").removesuffix(f"/{what}"): self.after_warmup(name, LASTS)
            for name in names
        }
        return {part: series for part, series in found.items() if len(series)}

    def first_loss(self) -> float | None:
        """Return the loss of untrained weights; None if the run's beginning was not logged.

        The first logged step must be within the first hundredth of the run, or the first five.
        """
        loss = self.series(LOSS)
        if not len(loss) or loss.steps[0] > max(5, self.least_steps // 100):
            return None
        return float(loss.values[0])

    def above_untrained(self) -> FiniteCurve | None:
        """Return the points above the loss of untrained weights; None if there are only a few.

        Even in its warmup, a model that learns is not much worse than untrained weights for long.
        """
        loss, first = self.series(LOSS), self.first_loss()
        if first is None or len(loss) <= UNTRAINED_WIDTH:
            return None
        spread = min(6 * noise(loss.values), MOST_NOISE)
        limit = first + max(UNTRAINED_SHARE * abs(first), spread)
        most = trailing_median(loss.values, UNTRAINED_WIDTH) > limit
        return loss.where(loss.values > limit) if most.any() else None

    def epochs(self, name: str) -> float | None:
        """Return the passes over the corpus so far; None if they were not logged."""
        epochs = self.series(name)
        return float(epochs.values[-1]) if len(epochs) else None


def least_loss(first_loss: float) -> float:
    """Return the lowest loss in nats per token that text allows.

    Untrained weights give about ln(vocabulary). The vocabulary determines the bytes of a token.
    """
    size = (first_loss - BYTE_VOCABULARY) / (LARGE_VOCABULARY - BYTE_VOCABULARY)
    bytes_per_token = 1 + (BYTES_PER_TOKEN - 1) * min(max(size, 0.0), 1.0)
    return LEAST_BITS * math.log(2) * bytes_per_token


def noise(values: Floats | Sequence[float]) -> float:
    """Estimate the standard deviation about the trend, which may rise or jump.

    From differences of neighbours; a median, so that a spike does not count.
    """
    found = np.abs(np.diff(np.asarray(values, np.float64)))
    found = found[np.isfinite(found)]
    return median(found) * 1.4826 / math.sqrt(2) if len(found) else 0.0


def median(values: Floats) -> float:
    """Return the median, in a fifth of the time that ``numpy.median`` takes for a few values."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    low, high = np.partition(values, (half - 1, half))[half - 1 : half + 1]
    return float(low + high) / 2


def trailing_median(values: Floats, width: int) -> Floats:
    """Return the median of each ``width`` neighbours, one for each point from the width-th on."""
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return np.asarray(np.median(windows, axis=1), np.float64)


def centred_median(values: Floats, width: int) -> Floats:
    """Return the centred rolling median; the ends repeat the first and last value. Width is odd."""
    return trailing_median(np.pad(values, width // 2, mode="edge"), width)


def last_run(mask: np.ndarray) -> int:
    """Return the index at which the run of True at the mask's end begins; its length if it ends
    with False.
    """
    others = np.flatnonzero(~mask)
    return int(others[-1]) + 1 if len(others) else 0


def trend(steps: NDArray[np.int64], values: Floats, least: float = 0.0) -> tuple[float, float]:
    """Return the change over the range of steps by a straight line, and its standard error, where
    the noise of one value is at least ``least``.
    """
    x = steps.astype(np.float64)
    x = (x - x.mean()) / max(float(x[-1] - x[0]), 1.0)
    spread = float(x @ x)
    slope = float(x @ values) / spread
    residual = values - values.mean() - slope * x
    noise_of_one = math.sqrt(float(residual @ residual) / max(len(x) - 2, 1))
    return slope, max(noise_of_one, least) / math.sqrt(spread)


def robust_trend(series: FiniteCurve) -> tuple[float, float]:
    """Return ``trend`` of the medians of up to 16 blocks, which a spike does not move."""
    count = min(16, len(series) // 5)
    blocks = [median(part) for part in np.array_split(series.values, count)]
    middles = [part[len(part) // 2] for part in np.array_split(series.steps, count)]
    change, error = trend(np.asarray(middles, np.int64), np.asarray(blocks, np.float64))
    # The first and the last middle are a block apart from the ends.
    return change * count / (count - 1), error * count / (count - 1)
