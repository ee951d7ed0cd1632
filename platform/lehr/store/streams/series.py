"""Series of metrics: read from the index, reduced for drawing."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np

from lehr.errors import NotFound, nearest
from lehr.store.streams import index, points, series_query
from lehr.store.streams.index import Readers, run_number
from lehr.store.streams.points import Points, Span
from lehr.store.streams.replica import SCORES
from lehr.store.streams.series_query import AXES, SeriesData, Wanted
from lehr_trainer.contract.layout import EVENTS


@dataclass(frozen=True)
class MetricSummary:
    """A metric of a run: its newest value and its range, without NaN."""

    name: str
    points: int
    last: float
    last_step: int
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class LatestValue:
    """The newest value of a metric."""

    value: float
    step: int


@dataclass(frozen=True)
class UnrecordedSteps:
    attempt: int  # The attempt whose records lack them.
    first: int
    last: int  # The step after which a later attempt went on.


_AT_ONCE = 1_000_000  # Points of many runs that are in memory at once, and those of one run.


class SeriesReader:
    """The metrics of runs, read from the index and reduced for drawing."""

    def __init__(self, index: Readers) -> None:
        self._index = index

    def spans(self, run_id: str) -> list[Span]:
        """Return the attempts whose points count, oldest first, each with its last such step."""
        with self._index.read() as connection:
            return points.lineage(points.starts(connection, run_number(connection, run_id)))

    def unrecorded(self, run_id: str) -> list[UnrecordedSteps]:
        """Return the steps that the run has taken and that no record has."""
        with self._index.read() as connection:
            return unrecorded_steps(connection, run_number(connection, run_id))

    def metrics(self, run_id: str) -> list[MetricSummary]:
        """List the run's metrics with their newest value and range (without NaN), by name."""
        with self._index.read() as connection:
            run = run_number(connection, run_id)
            known = points.starts(connection, run)
            spans = points.lineage(known)
            rows = connection.execute(
                "SELECT name, metric, attempt, step, value, points, low, high FROM latest"
                " JOIN names ON names.id = latest.metric WHERE run=? ORDER BY name, attempt",
                (run,),
            ).fetchall()
            if len(known) == 1:
                return [
                    MetricSummary(
                        name=name,
                        points=count,
                        last=_real(value),
                        last_step=step,
                        minimum=low,
                        maximum=high,
                    )
                    for name, _, _, step, value, count, low, high in rows
                ]
            curves = {
                name: points.joined(
                    points.curve(points.load_many(connection, [run], [metric]), run, metric, spans)
                )
                for name, metric in {row[0]: row[1] for row in rows}.items()
            }
        return [_info(name, curve) for name, curve in curves.items() if len(curve)]

    def read(self, run_id: str, name: str, **options: Any) -> SeriesData:
        """Read a metric of a run; ``options``: those of ``Wanted``.

        Raises:
            NotFound: it has no such metric.
        """
        if found := [*self.read_many([run_id], name, **options)]:
            return found[0]
        with self._index.read() as connection:
            raise _no_metric(connection, name, run_id)

    def read_many(self, run_ids: Sequence[str], name: str, **options: Any) -> Iterator[SeriesData]:
        """Read a metric of those of these runs that have it, each as ``read`` does."""
        wanted = Wanted(**options)
        series_query.check(wanted)
        within, axis = series_query.steps_within(wanted), AXES.get(wanted.x_axis)
        with self._index.read() as connection:
            having = connection.execute(
                "SELECT run_id.value, runs.id, metric, sum(points) FROM json_each(?) AS run_id"
                " JOIN runs ON runs.run = run_id.value JOIN latest ON latest.run = runs.id"
                " AND metric = (SELECT id FROM names WHERE name=?) GROUP BY run_id.key",
                (json.dumps([*run_ids]), name),
            ).fetchall()
            before = accumulate(count for *_, count in having)
            for _, part in groupby(having, lambda _: next(before) // _AT_ONCE):
                ids, runs, metrics, _ = zip(*part, strict=True)
                axes = metrics[:1] if axis is None else (metrics[0], axis)
                loaded = points.load_many(connection, runs, axes, within=within)
                starts = points.starts_of(connection, runs)
                for run_id, run in zip(ids, runs, strict=True):
                    known = starts.get(run, [])
                    yield series_query.series(loaded, known, run_id, run, name, metrics[0], wanted)

    def curves(self, run_id: str) -> tuple[dict[str, Points], dict[str, Points]]:
        """Return every point of the run's metrics by name, and of its axes: tokens and time.

        ``tokens`` are those trained on so far, ``time`` the seconds since the first point, both
        by step.
        """
        with self._index.read() as connection:
            run = run_number(connection, run_id)
            known = points.starts(connection, run)
            spans = points.lineage(known)
            names = connection.execute(
                "SELECT DISTINCT name, metric FROM latest"
                " JOIN names ON names.id = latest.metric WHERE run=? ORDER BY name",
                (run,),
            ).fetchall()

            every = [metric for _, metric in names]
            loaded = points.load_many(connection, [run], [*every, index.TOKENS, index.TIME])

            def curve(metric: int) -> Points:
                return points.joined(points.curve(loaded, run, metric, spans))

            found = {name: curve(metric) for name, metric in names}
            time = curve(index.TIME)
            since = Points(time.steps, time.values - series_query.first_time(loaded, run, known))
            axes = {"tokens": curve(index.TOKENS), "time": since}
        return {name: one for name, one in found.items() if len(one)}, axes

    def latest(
        self, run_ids: Sequence[str], names: Collection[str] | None = None
    ) -> dict[str, dict[str, LatestValue]]:
        """Return each run's newest value of each metric (or of these)."""
        wanted = [json.dumps([*run_ids]), *([] if names is None else [json.dumps([*names])])]
        of_these = "SELECT id FROM names WHERE name IN (SELECT value FROM json_each(?))"
        found: dict[str, dict[str, LatestValue]] = {run_id: {} for run_id in run_ids}
        with self._index.read() as connection:
            rows = connection.execute(
                "SELECT run_id.value, runs.id, name, metric, attempt, step, latest.value"  # noqa: S608
                " FROM json_each(?) AS run_id JOIN runs ON runs.run = run_id.value"
                " JOIN latest ON latest.run = runs.id JOIN names ON names.id = metric"
                f"{'' if names is None else f' AND metric IN ({of_these})'}"
                " ORDER BY name, attempt DESC",
                wanted,
            ).fetchall()
            starts = points.starts_of(connection, {row[1] for row in rows})
            limits = {
                (run, span.attempt): span.limit
                for run, known in starts.items()
                for span in points.lineage(known)
            }
            for run_id, run, name, metric, attempt, step, value in rows:
                limit = limits.get((run, attempt))
                if limit is None or name in found[run_id]:
                    continue
                if step <= limit:
                    found[run_id][name] = LatestValue(value=_real(value), step=step)
                    continue
                piece = points.load(connection, run, metric, attempt)
                if counted := int(np.searchsorted(piece.steps, limit, "right")):
                    found[run_id][name] = LatestValue(
                        value=float(piece.values[counted - 1]), step=int(piece.steps[counted - 1])
                    )
        return found

    def names(self) -> list[str]:
        """Return the names of all metrics of all runs."""
        with self._index.read() as connection:
            rows = connection.execute("SELECT name FROM names WHERE id > 0 ORDER BY name")
            return [name for (name,) in rows]

    def indexed(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return how many bytes of each run's events are indexed; without runs that have none.

        What is read of a run's metrics and events changes only together with it.
        """
        with self._index.read() as connection:
            rows = connection.execute(
                "SELECT runs.run, sum(indexed) FROM json_each(?) AS wanted"
                " JOIN runs ON runs.run = wanted.value"
                " JOIN streams ON streams.run = runs.id AND name IN (?, ?) GROUP BY runs.id",
                (json.dumps(run_ids), EVENTS, SCORES),
            )
            return dict(rows.fetchall())

    def recorded_at(self, run_ids: Sequence[str]) -> dict[str, float]:
        """Return when each run's newest metrics were recorded, by its node's clock, in seconds."""
        with self._index.read() as connection:
            rows = connection.execute(
                "SELECT runs.run, latest.value FROM json_each(?) AS wanted"
                " JOIN runs ON runs.run = wanted.value"
                " JOIN latest ON latest.run = runs.id AND metric=? ORDER BY attempt",
                (json.dumps(run_ids), index.TIME),
            )
            return {run_id: time for run_id, time in rows if time is not None}

    def trend(
        self, run_ids: Sequence[str], name: str = "train/loss", points: int = 24
    ) -> dict[str, list[float]]:
        """Return a few values of a metric over each run, for a sparkline; [] where it has none."""
        known = {one.run_id: one.y for one in self.read_many(run_ids, name, points=points)}
        return {run_id: known.get(run_id, []) for run_id in run_ids}


def _info(name: str, curve: Points) -> MetricSummary:
    real = curve.values[~np.isnan(curve.values)]
    return MetricSummary(
        name=name,
        points=len(curve),
        last=float(curve.values[-1]),
        last_step=int(curve.steps[-1]),
        minimum=float(real.min()) if len(real) else None,
        maximum=float(real.max()) if len(real) else None,
    )


def _no_metric(connection: sqlite3.Connection, name: str, run_id: str) -> NotFound:
    rows = connection.execute(
        "SELECT DISTINCT name FROM latest JOIN names ON names.id = latest.metric"
        " WHERE run=? ORDER BY name",
        (run_number(connection, run_id),),
    )
    known = [name for (name,) in rows]
    near = nearest(name, known)
    if near is not None:
        hint = f"Did you mean {near}?"
    else:
        hint = f"It has: {', '.join(known)}." if known else "It has not logged any metric yet."
    return NotFound(f"{run_id} has no metric {name!r}.", hint=hint)


def _real(value: float | None) -> float:
    return math.nan if value is None else value


def unrecorded_steps(connection: sqlite3.Connection, run: int) -> list[UnrecordedSteps]:
    """Return the steps before each resume that are beyond what the earlier attempt recorded.

    An attempt need not log each step: as many as between any two of its points may be missing at
    its end. A checkpoint is a record of its step.
    """
    starts = points.starts(connection, run)
    begun = {start.attempt: start.step for start in starts}
    found = []
    for earlier, _ in pairwise(points.lineage(starts)):
        logged = points.load(connection, run, index.TIME, earlier.attempt).steps
        known = np.append(begun[earlier.attempt], logged[logged <= earlier.limit])
        last = int(known.max())
        if last + int(np.diff(known).max(initial=0)) < earlier.limit:
            last = max(last, _last_checkpoint(connection, run, earlier))
        else:
            continue
        if last < earlier.limit:
            found.append(UnrecordedSteps(earlier.attempt, last + 1, earlier.limit))
    return found


def _last_checkpoint(connection: sqlite3.Connection, run: int, span: points.Span) -> int:
    """Return the step of the newest checkpoint on record; -1 without one."""
    (step,) = connection.execute(
        "SELECT max(json_extract(CAST(body AS TEXT), '$.step')) FROM records"
        " WHERE run=? AND attempt=? AND kind='checkpoint'"
        " AND json_extract(CAST(body AS TEXT), '$.step') <= ?",
        (run, span.attempt, span.limit),
    ).fetchone()
    return -1 if step is None else int(step)
