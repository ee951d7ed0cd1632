"""Check a home's databases for damage and report it. Nothing is changed."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import JSON
from sqlmodel import SQLModel

from lehr.base import home as homes
from lehr.control.lifecycle import RunState, can_transition
from lehr.errors import HomeUnusable, NotFound
from lehr.store.ids import attempt_id
from lehr.store.read_only import open_read_only
from lehr.store.records.run_rows import provenance_digest
from lehr.store.streams import index, points
from lehr.store.streams.indexer import Indexer
from lehr.store.streams.replica import SCORES, Replica
from lehr.store.streams.series import unrecorded_steps
from lehr.store.upkeep import capsules, migrate
from lehr_trainer.contract import layout


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "note"]  # error: damage. note: worth knowing; nothing to repair.
    where: str
    message: str


def check(home: Path) -> list[Finding]:
    """Find every problem of the files, of the record's logic, and between index and replica.

    May run beside the server: streams that grow meanwhile are not reported.
    """
    path = home / "lehr.db"
    try:
        if migrate.revision(path) is None:
            raise NotFound(f"{home} has no lehr.db.")
        found = list(_file(path))
    except HomeUnusable as error:
        found = [Finding("error", "lehr.db", error.message)]
    if not found:
        for look in (_json, _record, _provenance, _rollouts):
            found += _safely("lehr.db", look(path))
        missing = (Finding("error", "code", text) for text in capsules.missing(path, home))
        found += _safely("code", missing)
    found += _safely("code", (Finding("error", "code", text) for text in capsules.damaged(home)))
    streams = home / "streams.db"
    version = index.version(streams)
    if version is None:
        found.append(
            Finding("note", "streams.db", "is missing or unreadable; it is rebuilt at start")
        )
    elif version != index.VERSION:
        found.append(Finding("note", "streams.db", "has another version; it is rebuilt at start"))
    else:
        damage = list(_file(streams))
        found += damage or _safely("streams.db", _index(streams, Replica(homes.replica_dir(home))))
    if not any(finding.where in {"lehr.db", "streams.db"} for finding in found):
        lines = (Finding("note", place, text) for place, text in lost(home))
        found += _safely("streams.db", lines)
    return found


def _safely(where: str, findings: Iterator[Finding]) -> list[Finding]:
    """Return the findings. What cannot be read, such as a damaged row, is one of them."""
    found: list[Finding] = []
    try:
        found.extend(findings)
    except Exception as error:  # noqa: BLE001 - a damaged value may raise anything
        found.append(Finding("error", where, f"cannot be checked: {error!r}"[:300]))
    return found


def _json(path: Path) -> Iterator[Finding]:
    """Check that every value of a column of JSON can be read."""
    with closing(_open(path)) as connection:
        for table in SQLModel.metadata.sorted_tables:
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")}
            name = "id" if "id" in known else "rowid"
            for column in table.columns:
                if not isinstance(column.type, JSON) or column.name not in known:
                    continue
                rows = connection.execute(
                    f"SELECT {name} FROM {table.name}"  # noqa: S608 - names of our own tables
                    f" WHERE {column.name} IS NOT NULL AND NOT json_valid({column.name})"
                )
                for (row,) in rows:
                    yield Finding("error", f"{table.name} {row}", f"its {column.name} is damaged")


def _file(path: Path) -> Iterator[Finding]:
    try:
        with closing(_open(path)) as connection:
            for (message,) in connection.execute("PRAGMA integrity_check"):
                if message != "ok":
                    yield Finding("error", path.name, message)
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                yield Finding("error", path.name, f"{table} row {row} has no {parent}")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        yield Finding("error", path.name, str(error))


def _record(path: Path) -> Iterator[Finding]:
    """Check the rules of every run's history."""
    with closing(_open(path)) as connection:
        connection.execute("BEGIN")
        runs = connection.execute("SELECT id, state, attempt FROM runs ORDER BY number").fetchall()
        transitions: dict[str, list[tuple[str | None, str, int]]] = defaultdict(list)
        for run, old, new, attempt in connection.execute(
            "SELECT run_id, old, new, attempt FROM transitions ORDER BY id"
        ):
            transitions[run].append((old, new, attempt))
        attempts: dict[str, list[int]] = defaultdict(list)
        for run, number in connection.execute(
            "SELECT run_id, number FROM attempts ORDER BY run_id, number"
        ):
            attempts[run].append(number)
    for run, state, attempt in runs:
        where = f"run {run}"
        for message in _history(transitions[run], state):
            yield Finding("error", where, message)
        if attempts[run] != list(range(1, attempt + 1)):
            yield Finding("error", where, f"is at attempt {attempt}, but has {attempts[run]}")


def _provenance(path: Path) -> Iterator[Finding]:
    """Check that each provenance is what its digest names, and that a run uses it."""
    with closing(_open(path)) as connection:
        rows = connection.execute(
            "SELECT sha256, data, EXISTS (SELECT 1 FROM runs WHERE provenance_sha256 = sha256)"
            " FROM provenance"
        )
        for key, data, used in rows:
            where = f"provenance {key[:12]}"
            if provenance_digest(json.loads(data)) != key:
                yield Finding("error", where, "does not match its digest")
            if not used:
                yield Finding("note", where, "is of no run")


def _rollouts(path: Path) -> Iterator[Finding]:
    """Check that no stage started before all earlier ones passed."""
    with closing(_open(path)) as connection:
        stages = connection.execute(
            "SELECT rollout_id, name, outcome, started_at FROM rollout_stages"
            " ORDER BY rollout_id, number"
        ).fetchall()
    for rollout, of_it in groupby(stages, key=itemgetter(0)):
        waits: str | None = None
        for _, name, outcome, started_at in of_it:
            if waits is not None and (outcome is not None or started_at is not None):
                message = f"stage {name} has started, but the earlier stage {waits} has not passed"
                yield Finding("error", f"rollout {rollout}", message)
            if waits is None and outcome != "passed":
                waits = name


def _history(transitions: list[tuple[str | None, str, int]], state: str) -> Iterator[str]:
    at: str | None = None
    attempt = 0
    for old, new, number in transitions:
        if old != at:
            yield f"has a transition from {old} to {new} while it was {at}"
        elif old is None:
            if new != RunState.QUEUED.value:
                yield f"began as {new}"
        elif not can_transition(RunState(old), RunState(new)):
            yield f"has an invalid transition from {old} to {new}"
        begins = new in {RunState.STARTING, RunState.EXTERNAL}
        expected = attempt + 1 if begins else attempt
        if number != expected:
            yield f"has a transition to {new} of attempt {number}, but {expected} was the newest"
        at, attempt = new, number
    if at != state:
        yield f"is {state}, but its last transition was to {at}"


def _index(path: Path, replica: Replica) -> Iterator[Finding]:
    with closing(_open(path)) as connection:
        # One view: a file that grows meanwhile is longer than its row says, never shorter.
        connection.execute("BEGIN")
        rows = connection.execute(
            "SELECT runs.run, attempt, name, size, stored, indexed, malformed, crc32 FROM streams"
            " LEFT JOIN runs ON runs.id = streams.run ORDER BY runs.run, attempt, name"
        ).fetchall()
        streams = [
            StoredStream(run, attempt, name, stored, crc32)
            for run, attempt, name, _, stored, _, _, crc32 in rows
            if run is not None
        ]
        for where, message in differences(connection, replica, streams):
            yield Finding("error", where, message)
    for run, attempt, name, size, stored, indexed, malformed, _ in rows:
        if run is None:
            yield Finding("error", "streams.db", f"the stream {name} is of no run")
            continue
        where = f"{attempt_id(run, attempt)}/{name}"
        if malformed:
            yield Finding("note", where, f"{malformed:,} malformed lines were skipped")
        if size < stored:
            yield Finding("error", where, f"streams.db has {stored:,} bytes of {size:,}")
        elif stored < size:
            yield Finding("note", where, f"cut: {stored:,} of {size:,} bytes were kept")
        elif indexed < stored:
            yield Finding("note", where, f"its last line is torn, at byte {indexed:,}")


def _open(path: Path) -> sqlite3.Connection:
    connection = open_read_only(path, isolation_level=None, timeout=10)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def lost(home: Path) -> Iterator[tuple[str, str]]:
    """Yield a place and a sentence for each loss; ``lehr.db`` and ``streams.db`` must be whole."""
    with closing(open_read_only(home / "streams.db", timeout=10)) as streams:
        for number, run in streams.execute("SELECT id, run FROM runs ORDER BY run").fetchall():
            for steps in unrecorded_steps(streams, number):
                text = f"steps {steps.first:,} to {steps.last:,} are not on record"
                yield f"{run}-{steps.attempt}", text
    replica = Replica(homes.replica_dir(home))
    for attempt, _ in replica.files():
        for gap in replica.gaps(attempt):
            yield attempt, gap.text
    with closing(open_read_only(home / "lehr.db", timeout=10)) as record:
        rows = record.execute(
            "SELECT run_id, path FROM checkpoints WHERE removed_at IS NULL ORDER BY run_id, path"
        ).fetchall()
    for run, path in rows:
        # Another machine may have its folder: it is judged where the attempt's folder is here.
        folder = homes.runs_dir(home) / run / path
        if folder.parents[1].is_dir() and not (folder / layout.MANIFEST).is_file():
            yield f"run {run}", f"the checkpoint {path} is not in {folder.parents[2]}"


_READ = 4 << 20
_OF_ATTEMPT = {
    "records": "SELECT offset, ending, kind, time, body FROM records WHERE run=? AND attempt=?"
    " ORDER BY offset",
    "starts": "SELECT step, parent FROM starts WHERE run=? AND attempt=?",
    "events": "SELECT indexed FROM streams WHERE run=? AND attempt=? AND name='events.jsonl'",
}
_LATEST = "SELECT metric, step, value, points, low, high FROM latest WHERE run=? AND attempt=?"


class StoredStream(NamedTuple):
    """A row of the index. ``stored`` bytes of the file are compared; it may grow meanwhile."""

    run: str
    attempt: int
    name: str
    stored: int
    crc32: int

    @property
    def attempt_id(self) -> str:
        return attempt_id(self.run, self.attempt)


def received(path: Path) -> list[StoredStream]:
    """Return the streams of an index; none if it cannot be read."""
    try:
        with closing(open_read_only(path)) as connection:
            rows = connection.execute(
                "SELECT runs.run, attempt, name, stored, crc32 FROM streams"
                " JOIN runs ON runs.id = streams.run WHERE crc32 >= 0"
            )
            return [StoredStream(*row) for row in rows]
    except (sqlite3.Error, UnicodeDecodeError):
        return []


def keep_received(path: Path, streams: list[StoredStream]) -> None:
    """Put the checksums of what was received into an index that was made of the replica."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "UPDATE streams SET crc32=:crc32 WHERE attempt=:attempt AND name=:name"
            " AND stored=:stored AND run=(SELECT id FROM runs WHERE runs.run=:run)",
            [one._asdict() for one in streams],
        )


def differences(
    connection: sqlite3.Connection, replica: Replica, streams: list[StoredStream]
) -> Iterator[tuple[str, str]]:
    """Yield streams, and what is wrong with each. ``connection``: a view of the index.

    The fresh index holds an attempt at a time, so that it stays small.
    """
    with (
        TemporaryDirectory(prefix="lehr-check-") as folder,
        closing(index.create(Path(folder) / "fresh.db", durable=False)) as fresh,
    ):
        indexer = Indexer(fresh, replica)
        scores = {one.attempt_id: [one] for one in streams if one.name == SCORES}
        for stream in streams:
            fault = _replica_fault(replica, stream)
            if fault is None and stream.name == layout.EVENTS:
                own = [stream, *scores.get(stream.attempt_id, [])]
                fault = _index_fault(connection, indexer, replica, own)
            if fault is not None:
                yield f"{stream.attempt_id}/{stream.name}", fault


def _pieces(replica: Replica, stream: StoredStream) -> Iterator[bytes]:
    at = 0
    while at < stream.stored:
        data = replica.read(stream.attempt_id, stream.name, at, min(_READ, stream.stored - at))
        if not data:
            return
        at += len(data)
        yield data


def _replica_fault(replica: Replica, stream: StoredStream) -> str | None:
    crc32 = size = 0
    for data in _pieces(replica, stream):
        crc32, size = zlib.crc32(data, crc32), size + len(data)
    if size < stream.stored:
        return f"has {size:,} of the {stream.stored:,} bytes that were stored"
    if stream.crc32 not in {crc32, -1}:
        return "its bytes in the replica are not those that were received; a backup may have them"
    return None


def _index_fault(
    connection: sqlite3.Connection, indexer: Indexer, replica: Replica, streams: list[StoredStream]
) -> str | None:
    """Index streams of an attempt again, and return what the index has otherwise."""
    indexer.connection.execute("BEGIN IMMEDIATE")
    for stream in streams:
        entry = indexer.stream(stream.attempt_id, stream.name)
        for data in _pieces(replica, stream):
            entry = indexer.advance(entry, data, entry.stored + len(data))
    indexer.connection.execute("COMMIT")
    found = _content(connection, stream)
    expected = _content(indexer.connection, stream)
    indexer.drop(stream.run)
    names = expected | found
    wrong = [name for name in names if repr(expected.get(name)) != repr(found.get(name))]
    if not wrong:
        return None
    return f"streams.db differs from it in {', '.join(sorted(wrong)[:3])}: lehr db rebuild"


def _content(connection: sqlite3.Connection, stream: StoredStream) -> dict[str, Any]:
    """Return what an index has of an attempt, by name of the metric or table."""
    run = index.run_number(connection, stream.run)
    names = dict(connection.execute("SELECT id, name FROM names").fetchall())
    names |= {index.TOKENS: "tokens", index.TIME: "time"}
    of_attempt = run, stream.attempt
    found: dict[str, Any] = {
        table: connection.execute(query, of_attempt).fetchall()
        for table, query in _OF_ATTEMPT.items()
    }
    for metric, *newest in connection.execute(_LATEST, of_attempt).fetchall():
        series = points.load(connection, run, metric, stream.attempt)
        # Their bits, since NaN is not equal to itself.
        bits = series.values.view(np.int64).tolist() if len(series) else []
        found[names.get(metric, f"metric {metric}")] = newest, series.steps.tolist(), bits
    return found
