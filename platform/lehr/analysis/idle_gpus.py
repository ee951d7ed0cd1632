"""How many GPU-hours were idle, and why: from who held GPUs, and what the server saw meanwhile."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache

from lehr.schemas.cluster import ClusterHistory, IdleHours, NodeHistory, SeenSpan

IN_USE, DOWN, STARTING, UNUSED = "in use", "down", "starting", "held, not used"
UNUSED_BELOW = 0.05
"""A held GPU whose utilization, as the mean of a minute, is below this counts as not used."""
_DAY_S = 86_400
_BY = ("all", "week", "node", "project", "person")


def cluster_history(
    nodes: Sequence[NodeHistory], queue: Sequence[SeenSpan], began: float, now: float
) -> ClusterHistory:
    """Return the history with its sums. ``queue``: in order of time.

    A GPU that an attempt holds counts as idle until its training begins, and later while it is
    hardly used. One that none holds: for the reason of its node if that got no runs, else for that
    of the first queued run.
    """
    seconds: dict[tuple[str, int, str, str | None, str | None], float] = defaultdict(float)
    starts = [span.began for span in queue]
    whys = [(one.began, one.ended, one.kind, one.project, one.person) for one in queue]
    known_s = 0.0
    for node in nodes:
        for run in node.runs:
            at, end = max(run.began, began), run.ended or now
            last = min(run.trains_at or end, end)
            known = (one for one in node.spans if one.kind != DOWN)
            starts_s = sum(max(0.0, min(last, one.ended) - max(at, one.began)) for one in known)
            of = (STARTING, int(at // _DAY_S), node.name, run.project, run.person)
            seconds[of] += len(run.gpus) * starts_s
            for low in node.unused:
                if low.gpu in run.gpus and min(end, low.ended) > max(last, low.began):
                    why = f"held by {run.name}, under {UNUSED_BELOW:.0%} used".replace("%", " %")
                    of = (why, int(low.began // _DAY_S), node.name, run.project, run.person)
                    seconds[of] += min(end, low.ended) - max(last, low.began)
        for span, at, end, free in _between_changes(node, began, now):
            known_s += 0.0 if span.kind == DOWN else span.gpus * (end - at)
            day = int(at // _DAY_S)
            if span.kind != IN_USE or not free:
                seconds[span.kind, day, node.name, None, None] += free * (end - at)
                continue
            first = max(0, bisect(starts, at) - 1)
            for since, until, kind, project, person in whys[first : bisect(starts, end)]:
                overlap = min(until, end) - max(since, at)
                if overlap > 0:
                    seconds[kind, day, node.name, project, person] += free * overlap
    week_of = cache(lambda day: datetime.fromtimestamp(day * _DAY_S, UTC).strftime("%G-W%V"))
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    for (kind, day, *names), s in seconds.items():
        for by, name in zip(_BY, ("", week_of(day), *names), strict=True):
            if name is not None:
                sums[by, name, kind] += s / 3600
    return ClusterHistory(
        began=began,
        ended=now,
        nodes=list(nodes),
        queue=list(queue),
        gpu_hours=known_s / 3600,
        idle=[
            IdleHours(by=by, name=name, kind=kind, gpu_hours=hours)
            for (by, name, kind), hours in sorted(sums.items(), key=lambda item: -item[1])
            if hours
        ],
    )


def _between_changes(
    node: NodeHistory, began: float, now: float
) -> Iterator[tuple[SeenSpan, float, float, int]]:
    """Yield how many GPUs of a node no attempt held, for times in which nothing changed."""
    changes = [(run.began, -len(run.gpus)) for run in node.runs]
    changes += [(run.ended or now, len(run.gpus)) for run in node.runs]
    days = range(int(began // _DAY_S), int(now // _DAY_S) + 1)
    changes += [(float(day * _DAY_S), 0) for day in days]
    changes.sort()
    free, i = 0, 0
    for span in node.spans:
        at, last = span.began, min(span.ended, now)
        while at < last:
            while i < len(changes) and changes[i][0] <= at:
                free += changes[i][1]
                i += 1
            end = min(last, changes[i][0]) if i < len(changes) else last
            yield span, at, end, max(0, span.gpus + free)
            at = end
