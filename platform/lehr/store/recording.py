"""A sweep that another home recorded: its rows and its streams, kept in one file."""

from __future__ import annotations

import json
import lzma
from typing import Any

from sqlmodel import SQLModel, col, select

from lehr.errors import Conflict, OffsetMismatch
from lehr.store.records.run_rows import announce_runs, is_deleted
from lehr.store.store import Store
from lehr.store.tables import (
    Attempt,
    CheckpointRow,
    ProvenanceRow,
    RunRequest,
    RunRow,
    SweepRow,
    Transition,
    Trial,
)

TABLES: tuple[type[SQLModel], ...] = (
    ProvenanceRow,
    SweepRow,
    RunRow,
    Trial,
    Attempt,
    Transition,
    RunRequest,
    CheckpointRow,
)
"""Each after those that its rows refer to."""


def add_recording(store: Store, packed: bytes) -> str:
    """Record the sweep with its runs under the ids of the recording. Return the sweep's id.

    Nothing starts: its runs have ended. A repeated call completes an interrupted one.

    Raises:
        Conflict: one of the runs was deleted here.
    """
    recording: dict[str, Any] = json.loads(lzma.decompress(packed))
    [sweep] = recording["rows"][SweepRow.__tablename__]
    runs = [row["id"] for row in recording["rows"][RunRow.__tablename__]]
    with store.db.write(what="add_recording") as session:
        if session.exec(select(SweepRow.id).where(col(SweepRow.id) == sweep["id"])).first() is None:
            for table in TABLES:
                session.add_all(table(**row) for row in recording["rows"][table.__tablename__])
                session.flush()
        if any(is_deleted(session, run_id) for run_id in runs):
            raise Conflict(
                f"the recorded sweep {sweep['name']} ({sweep['id']}) was deleted from this home.",
                hint="Show it in another home (LEHR_HOME), or install torch: lehr demo trains it.",
            )
        announce_runs(store.db, [(run_id, sweep["id"]) for run_id in runs])
    for attempt_id, streams in recording["streams"].items():
        for name, text in streams.items():
            try:
                store.streams.append(attempt_id, name, 0, text.encode())
            except OffsetMismatch:  # An earlier call stored it; an append is stored whole or not.
                continue
    return str(sweep["id"])
