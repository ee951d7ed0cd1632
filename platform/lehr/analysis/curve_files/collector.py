"""What the readers yield, collected into curves: mapped, thinned, repeated steps set apart."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lehr.analysis.curve import Curve
from lehr.analysis.curve_files.names import metric_of
from lehr.errors import UserError
from lehr_trainer.extras import install


class CurveRow(NamedTuple):
    """The values that a file has for one step. A tuple, since there may be millions."""

    step: int
    values: dict[str, float]  # By the name that the file uses.
    place: int | str
    """Where it is in the file: a line's number, or e.g. "record 17"."""
    at: float | None = None
    """When it was logged, in seconds since 1970, if the file has that beside the values."""


@dataclass(frozen=True)
class Resumption:
    """Training resumed after ``step``: later points of earlier attempts are superseded."""

    step: int


@dataclass(frozen=True)
class RunFacts:
    """What a file contains about its run besides curves; None where it does not."""

    total_steps: int | None = None
    warmup_steps: int | None = None
    changes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Remark:
    """Something that the reader skipped or assumed, as a sentence."""

    text: str


Point = CurveRow | Resumption | RunFacts | Remark
Points = Iterator[Point]


def unreadable(path: object, why: str, hint: str | None = None) -> UserError:
    return UserError(f"{path}: {why}", hint=hint)


def needs(path: object, package: str) -> UserError:
    """Return the error of a file that only a missing package can decode."""
    return unreadable(
        path,
        f"reading it needs the {package} package, which is not installed.",
        f"{install(f'lehr[{package}]')}, or export the run as CSV",
    )


MOST_POINTS = 20_000
"""Points kept of a metric. When there are more, every second one goes, and from then on only
every second (fourth, ...) new one is kept."""
MOST_RETURNS = 20
"""Times that steps may go back without a recorded resumption; in long files a share of rows."""
RETURNS_SHARE = 0.01
GAP = 20  # A gap in the steps is this many times the usual distance.


class _Kept:
    """The kept points of one metric, by ascending step."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self.lost_steps, self.lost_values = array("q"), array("d")
        self.stride, self.arrived = 1, 0
        self.infinite = False
        self.rank = 0

    def add(self, step: int, value: float) -> None:
        if self.steps and step <= self.steps[-1]:
            self.supersede(step - 1)
        finite = math.isfinite(value)
        first_infinite = not finite and not self.infinite
        self.infinite = self.infinite or not finite
        self.arrived += 1
        if self.arrived % self.stride and not first_infinite:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) >= MOST_POINTS:
            self._thin()

    def supersede(self, step: int) -> None:
        """Set the points after ``step`` apart."""
        at = bisect.bisect_right(self.steps, step)
        if len(self.lost_steps) < MOST_POINTS:
            self.lost_steps += self.steps[at:]
            self.lost_values += self.values[at:]
        del self.steps[at:]
        del self.values[at:]

    def _thin(self) -> None:
        keep = [i for i, value in enumerate(self.values) if i % 2 or not math.isfinite(value)]
        # A run that is not finite for long would never get shorter.
        if len(keep) > 0.75 * len(self.values):
            keep = keep[::2]
        self.steps = array("q", [self.steps[i] for i in keep])
        self.values = array("d", [self.values[i] for i in keep])
        self.stride *= 2

    def curve(self) -> Curve:
        lost: tuple[Curve, ...] = ()
        if self.lost_steps:
            # Several attempts may have lost the same step: the last one counts.
            by_step = dict(zip(self.lost_steps, self.lost_values, strict=True))
            order = sorted(by_step)
            lost = (Curve(order, [by_step[step] for step in order]),)
        return Curve(self.steps.tolist(), self.values.tolist(), lost)


class Collector:
    """Curves of a file in the making."""

    def __init__(self, given: dict[str, str]) -> None:
        """``given``: metrics by the file's names, which go before the usual ones."""
        self._given = given
        self._metrics: dict[str, tuple[str, int] | None] = {}
        self._kept: dict[str, _Kept] = {}
        self._newest: dict[str, int] = {}
        self.names: set[str] = set()  # Every name of the file.
        self.rows, self.returns, self.repeats = 0, 0, 0
        self._first_return: str | None = None
        self._first_repeat: str | None = None

    def row(self, step: int, values: dict[str, float], place: int | str) -> None:
        self.rows += 1
        returned = repeated = False
        for name, value in values.items():
            found = self._metric(name)
            if found is None:
                continue
            metric, rank = found
            kept = self._kept.get(metric)
            if kept is None or rank < kept.rank:
                # A better name of the metric replaces what a worse one has brought.
                kept = self._kept[metric] = _Kept()
                kept.rank = rank
            elif rank > kept.rank:
                continue
            before = self._newest.get(metric)
            returned = returned or (before is not None and step < before)
            repeated = repeated or step == before
            self._newest[metric] = step
            kept.add(step, value)
        if returned:
            self.returns += 1
            self._first_return = self._first_return or _named(place)
        elif repeated:
            self.repeats += 1
            self._first_repeat = self._first_repeat or _named(place)

    def resume(self, step: int) -> None:
        """Set apart what earlier attempts logged after ``step``."""
        for metric, kept in self._kept.items():
            kept.supersede(step)
            self._newest[metric] = min(self._newest.get(metric, step), step)

    def _metric(self, name: str) -> tuple[str, int] | None:
        if name not in self._metrics:
            self.names.add(name)
            found = metric_of(name)
            if name in self._given:
                found = (self._given[name], -1)
            elif found is not None and found[0] in self._given.values():
                found = None
            self._metrics[name] = found
        return self._metrics[name]

    def wants(self, name: str) -> bool:
        """Whether the diagnosis reads the metric of that name."""
        return self._metric(name) is not None

    def curves(self, path: object) -> dict[str, Curve]:
        """Return the curves.

        Raises:
            UserError: steps go back so often that the rows cannot be one run in order.
        """
        if self.returns > max(MOST_RETURNS, RETURNS_SHARE * self.rows):
            raise UserError(
                f"{path}: steps are out of order: they go back {self.returns:,} times in "
                f"{self.rows:,} rows, first at {self._first_return}.",
                hint="Sort the rows by step, and give one run at a time.",
            )
        return {metric: kept.curve() for metric, kept in self._kept.items() if len(kept.steps)}

    def remarks(self, curves: dict[str, Curve]) -> list[str]:
        """Return what was assumed and left out, as sentences."""
        remarks = []
        if self.returns:
            remarks.append(
                f"Steps go back {self.returns:,} times, first at {self._first_return}: taken for "
                "a resumed run, of which the later points count."
            )
        if self.repeats:
            rows = "row has" if self.repeats == 1 else "rows have"
            remarks.append(
                f"{self.repeats:,} {rows} the step of the one before, first at "
                f"{self._first_repeat}: of each step the last one counts."
            )
        thinned = {m: k.stride for m, k in self._kept.items() if k.stride > 1}
        if thinned:
            most = max(thinned.values())
            remarks.append(
                f"Long curves are thinned to at most {MOST_POINTS:,} points (every "
                f"{most:,}th): {', '.join(sorted(thinned))}. Short spikes may be missed."
            )
        remarks += [gap for name, curve in curves.items() if (gap := _gap(name, curve)) is not None]
        unused = sorted(name for name in self.names if self._metrics[name] is None)
        if unused:
            shown = ", ".join(unused[:6]) + (", ..." if len(unused) > 6 else "")
            remarks.append(f"Not used, {len(unused)}: {shown}.")
        return remarks


def _named(place: int | str) -> str:
    return f"line {place:,}" if isinstance(place, int) else place


def _gap(name: str, curve: Curve) -> str | None:
    distances = [b - a for a, b in zip(curve.steps, curve.steps[1:], strict=False)]
    if len(distances) < 10:
        return None
    usual = sorted(distances)[len(distances) // 2]
    widest = max(range(len(distances)), key=distances.__getitem__)
    if distances[widest] < GAP * usual:
        return None
    before, after = curve.steps[widest], curve.steps[widest + 1]
    return f"{name} has no points between steps {before:,} and {after:,}."
