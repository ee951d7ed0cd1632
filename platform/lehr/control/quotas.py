"""Decide which waiting runs are within the quotas of their projects.

A quota is the most GPUs that a project's runs hold at a time. Runs of a project are counted by
priority, then by order of submission. Once one is over the quota, those behind it wait as well:
smaller runs would otherwise overtake it for ever. A run that needs more than the whole quota waits
alone, since it can start only when the quota is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lehr.control import pending_reasons

if TYPE_CHECKING:
    from lehr.control.queue_entries import Active, Waiting


def held_by_project(active: Iterable[Active]) -> Counter[str]:
    """Return how many GPUs each project's runs hold."""
    held: Counter[str] = Counter()
    for holder in active:
        held[holder.project] += sum(len(share.gpus) for share in holder.placement)
    return held


def within_quotas(
    waiting: Sequence[Waiting], active: Iterable[Active], quotas: Mapping[str, int]
) -> tuple[list[Waiting], dict[str, str]]:
    """Split runs by the quotas of their projects; return the others' reasons."""
    if not quotas:
        return list(waiting), {}
    held = held_by_project(active)
    requested: Counter[str] = Counter()
    full: set[str] = set()
    allowed, why = [], {}
    for run in sorted(waiting, key=lambda run: (-run.priority, run.number)):
        quota, need = quotas.get(run.project), run.need.gpus
        if quota is None or not need:
            allowed.append(run)
        elif need > quota:
            why[run.run_id] = pending_reasons.above_quota(run.need, run.project, quota)
        elif run.project in full or held[run.project] + requested[run.project] + need > quota:
            full.add(run.project)
            used = held[run.project]
            why[run.run_id] = pending_reasons.over_quota(run.project, used, quota)
        else:
            requested[run.project] += need
            allowed.append(run)
    return allowed, why
