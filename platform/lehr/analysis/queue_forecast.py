"""When waiting runs are expected to start, from measured speeds and the steps that are left.

GPUs are counted, not placed: which node they are on, and whether a later run may fill a gap, is the
queue's decision. So a run may start earlier or later; ``basis`` has the figures that were used.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GpuHolder:
    """A run that holds GPUs."""

    name: str
    gpus: int
    steps_left: int | None = None
    """None if only its program determines it."""
    step_s: float | None = None
    """Median time of a step; None before it is measured."""
    project: str = ""

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
    project: str = ""
    never: str | None = None
    """Why no node that is known can hold it. It then reserves nothing."""


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
    quotas: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, ExpectedStart]:
    """Return when each waiting run is expected to start, by its id.

    A run that could start now is left out: something else than GPUs keeps it waiting.

    Args:
        free: GPUs that nothing holds.
        holders: the runs that hold GPUs.
        waiting: the waiting runs, in the order of the queue.
        quotas: by project with a quota, the most GPUs that its runs hold. A run over it waits for
            runs of its project, and those behind it pass.
    """
    ends: list[tuple[float, int, GpuHolder, str]] = []
    unknown: list[str] = []
    held: Counter[str] = Counter()

    def hold(number: int, holder: GpuHolder, since: float) -> None:
        held[holder.project] += holder.gpus
        left = holder.seconds_left
        if left is None:
            unknown.append(holder.lacks)
        else:
            basis = f"{holder.name} ends: {holder.basis}"
            heapq.heappush(ends, (since + left, number, holder, basis))

    for number, holder in enumerate(holders):
        hold(number, holder, 0.0)
    found: dict[str, ExpectedStart] = {}
    left = []
    for run in waiting:
        never = run.never
        if never is None and run.gpus > quotas.get(run.project, run.gpus):
            never = f"its project may hold {quotas[run.project]} GPUs"
        if never is None:
            left.append(run)
        else:
            found[run.run_id] = ExpectedStart(None, never)
    now, basis, number = 0.0, "", len(holders)
    while left:
        first = _first_within(left, held, quotas)
        if first is None or free < first.gpus:
            if not ends:
                needed = (first or left[0]).gpus
                reason = unknown[0] if unknown else f"fewer than {needed} GPUs can be used now"
                return found | {run.run_id: ExpectedStart(None, reason) for run in left}
            end, _, ended, basis = heapq.heappop(ends)
            now = max(now, end)
            free += ended.gpus
            held[ended.project] -= ended.gpus
            continue
        left.remove(first)
        if now > 0.0:
            found[first.run_id] = ExpectedStart(now, basis)
        free -= first.gpus
        hold(number, _holder(first), now)
        number += 1
    return found


def _first_within(
    waiting: Sequence[QueuedRun], held: Mapping[str, int], quotas: Mapping[str, int]
) -> QueuedRun | None:
    """Return the first run whose project stays within its quota; no smaller one of it overtakes."""
    full: set[str] = set()
    for run in waiting:
        quota = quotas.get(run.project)
        if quota is None or not run.gpus:
            return run
        if run.project not in full and held.get(run.project, 0) + run.gpus <= quota:
            return run
        full.add(run.project)
    return None


def _holder(run: QueuedRun) -> GpuHolder:
    return GpuHolder(run.name, run.gpus, run.steps, run.step_s, run.project)
