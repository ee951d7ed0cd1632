"""When waiting runs are expected to start, from measured speeds and the steps that are left.

GPUs are counted, not placed: which node they are on, and whether a later run may fill a gap, is the
queue's decision. So a run may start earlier or later; the basis tells what the estimate rests on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from lehr.control.maintenance import reaches


@dataclass(frozen=True)
class GpuHolder:
    """A run that holds GPUs."""

    name: str
    gpus: int
    steps_left: int | None = None
    """None if only its program knows it."""
    step_s: float | None = None
    """Median time of a step; None before it is measured."""

    @property
    def seconds_left(self) -> float | None:
        if self.steps_left is None or self.step_s is None:
            return None
        return self.steps_left * self.step_s

    @property
    def lacks(self) -> str:
        """Describe why there is no estimate of its end."""
        if self.step_s is None:
            return f"no time of a step is measured of {self.name}"
        return f"the number of steps of {self.name} is not known"

    @property
    def basis(self) -> str:
        return f"{self.steps_left:,} steps left at {self.step_s:.3g} s"


@dataclass(frozen=True)
class QueuedRun:
    run_id: str
    name: str
    gpus: int
    steps: int | None = None
    step_s: float | None = None
    """As measured in its own earlier attempts, or in runs of its sweep."""
    can_save: bool = True
    """A maintenance window does not cost its work."""
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Closure:
    """A maintenance window, in seconds from now."""

    starts_in_s: float
    ends_in_s: float
    gpus: int | None
    """How many GPUs it closes; None: all."""
    text: str


@dataclass(frozen=True)
class ExpectedStart:
    in_s: float | None
    """Seconds until it is expected to start; None if that is not known."""
    because: str
    """What the time rests on, or why there is none."""


def forecast(
    free: int,
    holders: Sequence[GpuHolder],
    waiting: Sequence[QueuedRun],
    closures: Sequence[Closure] = (),
) -> dict[str, ExpectedStart]:
    """Return when each waiting run is expected to start, by its id.

    A run that could start now is left out: something else than GPUs keeps it waiting.

    Args:
        free: GPUs that nothing holds.
        holders: the runs that hold GPUs.
        waiting: the waiting runs, in the order of the queue.
        closures: maintenance windows. Runs pause during those of all GPUs.
    """
    ends: list[tuple[float, int, int, str]] = []
    unknown: list[str] = []

    def hold(number: int, holder: GpuHolder, since: float) -> None:
        left = holder.seconds_left
        if left is None:
            unknown.append(holder.lacks)
        else:
            basis = f"{holder.name} ends: {holder.basis}"
            heapq.heappush(ends, (_end(since, left, closures), number, holder.gpus, basis))

    for number, holder in enumerate(holders):
        hold(number, holder, 0.0)
    found: dict[str, ExpectedStart] = {}
    now, basis = 0.0, ""
    for number, run in enumerate(waiting, len(holders)):
        while free < run.gpus and ends:
            end, _, gpus, basis = heapq.heappop(ends)
            now = max(now, end)
            free += gpus
        if free < run.gpus:
            reason = unknown[0] if unknown else f"the cluster has fewer than {run.gpus} GPUs"
            for later in waiting[number - len(holders) :]:
                found[later.run_id] = ExpectedStart(None, reason)
            return found
        start, because = _start(now, basis, run, free, closures)
        if start > 0.0:
            found[run.run_id] = ExpectedStart(start, because)
        free -= run.gpus
        hold(number, GpuHolder(run.name, run.gpus, run.steps, run.step_s), start)
    return found


def _end(since: float, left: float, closures: Sequence[Closure]) -> float:
    """Return when a run ends that trains from ``since`` on, outside of windows of all GPUs."""
    end = since + left
    for one in sorted(closures, key=lambda one: one.starts_in_s):
        if one.gpus is None and one.starts_in_s < end and one.ends_in_s > since:
            end += one.ends_in_s - max(one.starts_in_s, since)
    return end


def _start(
    now: float, basis: str, run: QueuedRun, free: int, closures: Sequence[Closure]
) -> tuple[float, str]:
    """Return when the run may start from ``now`` on, and what that rests on."""
    for one in sorted(closures, key=lambda one: one.starts_in_s):
        if now >= one.ends_in_s:
            continue
        left = 0 if one.gpus is None else free - one.gpus
        opened = one.starts_in_s <= now
        late = reaches(one.starts_in_s - now, can_save=run.can_save, time_limit_s=run.time_limit_s)
        if (opened or late) and left < max(1, run.gpus):
            now, basis = one.ends_in_s, f"the maintenance {one.text} ends"
    return now, basis
