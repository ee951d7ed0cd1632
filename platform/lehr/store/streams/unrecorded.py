"""Steps that a run has taken and that no record has."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lehr.store.streams import index, points


@dataclass(frozen=True)
class UnrecordedSteps:
    attempt: int
    """The attempt whose records lack them."""
    first: int
    last: int
    """The step after which a later attempt went on."""


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
