"""Records of ``events.jsonl`` that are not metrics, read from the index."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from lehr.base.names import task_of
from lehr.store.streams.index import Readers, run_number
from lehr_trainer.contract.records import AnyRecord, record_adapter


class StoredRecord(NamedTuple):
    """A record of an attempt that is not a metric."""

    attempt: int
    record: AnyRecord


NEWEST_BYTES = 8 << 20  # Of one answer: some 30,000 records. A real run has hundreds.
_MOST_CONFIGS = 100  # Records of changes of a config that are read: as many as a program writes.


class NewestRecords(NamedTuple):
    """Records in order, and whether none was left out."""

    records: list[StoredRecord]
    whole: bool


class Events:
    """The records of attempts other than metrics."""

    def __init__(self, index: Readers) -> None:
        self._index = index

    def records(self, run_id: str, kinds: Collection[str] | None = None) -> list[StoredRecord]:
        """Return all records but metrics, by attempt; those of evaluations beside it, then in the
        order of the stream.
        """
        with self._index.read() as connection:
            run = run_number(connection, run_id)
            rows = connection.execute(
                "SELECT attempt, kind, body FROM records WHERE run=? ORDER BY attempt, offset",
                (run,),
            ).fetchall()
        found: list[StoredRecord] = []
        for attempt, kind, body in rows:
            if kinds is not None and kind not in kinds:
                continue
            try:
                record: AnyRecord = record_adapter.validate_json(body)
            except ValidationError:
                continue  # The kind is of a newer trainer.
            found.append(StoredRecord(attempt, record))
        return found

    def newest(
        self,
        run_id: str,
        kinds: Collection[str],
        *,
        attempt: int | None = None,
        size: int = NEWEST_BYTES,
    ) -> NewestRecords:
        """Return the newest records of these kinds, up to ``size`` bytes, in ``records``' order.

        ``attempt``: of this attempt alone. A worker chooses how many records there are, so what
        answers a request reads them with this limit.
        """
        marks = ",".join("?" * len(kinds))
        which = "" if attempt is None else " AND attempt=?"
        found: list[StoredRecord] = []
        whole = True
        with self._index.read() as connection:
            run = run_number(connection, run_id)
            rows = connection.execute(
                f"SELECT attempt, body FROM records WHERE run=? AND kind IN ({marks}){which}"  # noqa: S608 - marks and a constant
                " ORDER BY attempt DESC, offset DESC",
                (run, *sorted(kinds), *([] if attempt is None else [attempt])),
            )
            for number, body in rows:
                size -= len(body)
                if size < 0:
                    whole = False
                    break
                with contextlib.suppress(ValidationError):  # The kind is of a newer trainer.
                    found.append(StoredRecord(number, record_adapter.validate_json(body)))
        return NewestRecords(found[::-1], whole)

    def configs(self, run_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the values that the programs of runs gave as their config, if they did."""
        newest = (
            "SELECT attempt, body FROM records WHERE run=? AND kind='config'"
            " ORDER BY attempt DESC, offset DESC LIMIT ?"
        )
        found: dict[str, dict[str, Any]] = {}
        with self._index.read() as connection:
            for run_id in run_ids:
                which = (run_number(connection, run_id), _MOST_CONFIGS)
                rows = connection.execute(newest, which).fetchall()
                values = found.setdefault(run_id, {})
                for attempt, body in reversed(rows):  # Each has what changed.
                    if attempt == rows[0][0]:
                        values.update(orjson.loads(body)["values"])
        return found

    def held_out(self, run_ids: Iterable[str], metric: str = "val/loss") -> dict[str, str | None]:
        """Return, for each run, the digest of what the metric was last measured on: the held-out
        set, or the items of a task.

        The digest is None for a run that has recorded none.
        """
        task = task_of(metric)
        with self._index.read() as connection:
            return {run_id: _held_out(connection, run_id, task) for run_id in run_ids}


def _held_out(connection: sqlite3.Connection, run_id: str, task: str | None) -> str | None:
    # The newest row comes first and nearly always has it, so the rows are not all read.
    rows = connection.execute(
        "SELECT body FROM records WHERE run=? AND kind IN ('evaluation', 'started')"
        " ORDER BY attempt DESC, offset DESC",
        (run_number(connection, run_id),),
    )
    records = (orjson.loads(body) for (body,) in rows)
    if task is None:
        digests = (record.get("validation_digest") for record in records)
    else:
        digests = (record.get("tasks", {}).get(task) for record in records)
    return next((digest for digest in digests if digest), None)
