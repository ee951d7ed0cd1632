"""Gather a ``History`` from the home of a fake server, running or not."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lehr.base import procfs
from lehr.node import gpu_lock
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.faults.history import Ack, AttemptRow, History, Launch, Move, RunRow, Stream
from lehr_trainer.contract import layout


def gather(
    home: Path,
    witness: Path,
    *,
    runs_dir: Path,
    series: Callable[[str], list[int]],
    acknowledged: Iterable[Ack] = (),
    first: int = 0,
) -> History:
    """Of the home's runs from number ``first`` on; ``series`` is read from the server."""
    with _record(home) as database:
        database.row_factory = sqlite3.Row
        runs = [
            RunRow(
                *(r["id"], r["name"], r["state"], r["attempt"], _steps(r["spec"])),
                forked_at=layout.checkpoint_step(Path(r["resume_from"] or "")) or 0,
            )
            for r in database.execute(
                "SELECT * FROM runs WHERE number >= ? ORDER BY number", [first]
            )
        ]
        ids = {run.id for run in runs}
        moves = [
            Move(m["run_id"], m["attempt"], m["old"], m["new"])
            for m in database.execute("SELECT * FROM transitions ORDER BY id")
            if m["run_id"] in ids
        ]
        rows = [_attempt(row) for row in database.execute("SELECT * FROM attempts")]
        attempts = [row for row in rows if row.run in ids]
        asked = database.execute("SELECT * FROM requests")
        requests = [(w["run_id"], w["kind"]) for w in asked if w["run_id"] in ids]
    earlier = {row.id for row in rows} - {row.id for row in attempts}
    return History(
        runs=runs,
        moves=moves,
        attempts=attempts,
        launches=[one for one in launches(witness) if one.attempt not in earlier],
        streams=[stream for one in attempts for stream in _streams(home, runs_dir, one)],
        series={run.id: series(run.id) for run in runs},
        acknowledged=tuple(acknowledged),
        requests=requests,
        processes=_processes({one.id for one in attempts}),
        held_locks=held_locks(home),
    )


def _record(home: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"file:{home / 'lehr.db'}?mode=ro", uri=True))


def next_number(home: Path) -> int:
    """The number that the next run will have."""
    with _record(home) as database:
        [[last]] = database.execute("SELECT max(number) FROM runs")
    return (last or 0) + 1


def launches(witness: Path) -> list[Launch]:
    """Return every trainer process that ran, from its journal."""
    found = []
    for path in sorted((witness / "journal").glob("*.jsonl")):
        lines = _lines(path)
        if not lines:
            continue  # Killed before its first entry.
        first = lines[0]
        pid = int(path.name.split(".")[2])
        found.append(
            Launch(
                attempt=str(first["attempt"]),
                rank=int(first["rank"]),
                pid=pid,
                gpus=tuple(first["gpus"]),
                began=float(first["at"]),
                seen=float(lines[-1]["at"]),
            )
        )
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _steps(spec: str) -> int:
    """Return how many steps a run has; a program's number is among its arguments."""
    found = json.loads(spec)
    if found.get("train"):
        return int(found["train"]["steps"])
    trainer = found["trainer"]
    return int(trainer["args"][trainer["steps_arg"]])


def _attempt(row: sqlite3.Row) -> AttemptRow:
    note = json.loads(row["exit"]) if row["exit"] else {}
    return AttemptRow(
        id=row["id"],
        run=row["run_id"],
        number=row["number"],
        exited=row["exited_at"] is not None,
        given_up=bool((note or {}).get("synthetic")),
        open=bool(row["open"]),
    )


def _streams(home: Path, runs_dir: Path, attempt: AttemptRow) -> list[Stream]:
    """Only the events: logs are capped and are not judged."""
    written = runs_dir / attempt.run / f"attempt-{attempt.number}" / "events.jsonl"
    kept = home / "replica" / attempt.id / "events.jsonl"
    if not written.exists():
        return []
    # The kept ones first: the other may grow in between.
    bytes_kept = kept.read_bytes() if kept.exists() else b""
    return [Stream(attempt.id, "events.jsonl", written.read_bytes(), bytes_kept)]


def _processes(attempts: set[str]) -> dict[str, int]:
    """Living trainer processes by attempt, found by their mark."""
    found: dict[str, int] = {}
    for pid in procfs.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            name, _, value = entry.partition(b"=")
            if name == b"LEHR_ATTEMPT" and value.decode() in attempts and procfs.start_time(pid):
                found[value.decode()] = found.get(value.decode(), 0) + 1
    return found


def held_locks(home: Path) -> dict[str, str | None]:
    """GPU locks that are held, by the attempt whose entry has a living shim with that GPU.

    A home of a machine of namespaces has another path here than in its own files.
    """
    holders: dict[str, str] = {}
    for path in home.glob("node/*/attempts/*"):
        entry = AttemptDir(str(path))
        launch = entry.launch() if path.is_dir() else None
        if launch is not None and entry.exit() is None:
            holders |= {_in_home(one): entry.attempt_id for one in launch["gpu_locks"]}
    locks = [str(path) for path in home.glob("node/*/gpus/*.lock")]
    return {path: holders.get(_in_home(path)) for path in locks if not gpu_lock.is_free(path)}


def _in_home(lock: str) -> str:
    """Return node/gpus/lock, which a lock's path ends in."""
    node, _, gpu = Path(lock).parts[-3:]
    return f"{node}/{gpu}"
