"""When waiting runs are expected to start, from measured speeds and the steps that are left.

GPUs are counted, not placed: which node they are on, and whether a later run may fill a gap, is the
queue's decision. So a run may start earlier or later; the basis tells what the estimate rests on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuHolder:
    """A run that holds GPUs."""

    name: str
    gpus: int
    steps_left: int | None = None
    step_s: float | None = None
    """Median time of a step; None before it is measured."""

    @property
    def seconds_left(self) -> float | None:
        if self.steps_left is None or self.step_s is None:
            return None
        return self.steps_left * self.step_s

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


@dataclass(frozen=True)
class ExpectedStart:
    in_s: float | None
    """Seconds until it is expected to start; None if that cannot be told."""
    because: str
    """What the time rests on, or why there is none."""


def forecast(
    free: int, holders: Sequence[GpuHolder], waiting: Sequence[QueuedRun]
) -> dict[str, ExpectedStart]:
    """Return when each waiting run is expected to start, by its id.

    A run that could start now is left out: something else than GPUs keeps it waiting.

    Args:
        free: GPUs that nothing holds.
        holders: the runs that hold GPUs.
        waiting: the waiting runs, in the order of the queue.
    """
    ends: list[tuple[float, int, int, str]] = []
    unknown: list[str] = []

    def hold(number: int, holder: GpuHolder, since: float) -> None:
        left = holder.seconds_left
        if left is None:
            unknown.append(holder.name)
        else:
            basis = f"{holder.name} ends: {holder.basis}"
            heapq.heappush(ends, (since + left, number, holder.gpus, basis))

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
            reason = (
                f"no time of a step is measured of {unknown[0]}"
                if unknown
                else f"the cluster has fewer than {run.gpus} GPUs"
            )
            for later in waiting[number - len(holders) :]:
                found[later.run_id] = ExpectedStart(None, reason)
            return found
        if now > 0.0:
            found[run.run_id] = ExpectedStart(now, basis)
        free -= run.gpus
        hold(number, GpuHolder(run.name, run.gpus, run.steps, run.step_s), now)
    return found
