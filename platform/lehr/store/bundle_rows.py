"""The rows of a run, sweep or rollout as one document, and the way back into a store."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import inspect
from sqlmodel import SQLModel, col, select

from lehr.base.bundle import OPENED
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.specs.load import load_spec
from lehr.store import tables as t
from lehr.store.records.run_rows import among, announce_runs, is_deleted, keep_provenance
from lehr.store.store import Store

Rows = dict[str, list[dict[str, Any]]]
Item = t.RunRow | t.SweepRow | t.RolloutRow
TABLES: dict[type[SQLModel], str] = {
    t.ProvenanceRow: "sha256",
    **dict.fromkeys((t.SweepRow, t.RolloutRow, t.RunRow), "id"),
    **dict.fromkeys((t.Trial, t.Attempt, t.Transition, t.RunRequest, t.CheckpointRow), "run_id"),
    **dict.fromkeys((t.RolloutStage, t.RolloutRun, t.GateVerdict), "rollout_id"),
}
"""By which column their rows are found; each after those that its rows refer to."""
_ID = re.compile(r"[a-z0-9]{4,40}")


def _own(table: type[SQLModel]) -> dict[str, Any]:
    if table is t.Attempt:
        return {"token_sha256": "", "open": False}
    return {"sha256": {}, "id": {"number": None}}.get(TABLES[table], {"id": None})


def rows_of(store: Store, item: Item) -> Rows:
    """Return the rows of a run, sweep or rollout, without variables: they may be secrets.

    Raises:
        Conflict: a run has not ended, or was deleted.
    """
    with store.db.read() as session:
        own = select(t.RolloutRun.run_id).where(t.RolloutRun.rollout_id == item.id)
        where = among(t.RunRow.id, [item.id, *session.exec(own)])
        where |= col(t.RunRow.sweep_id) == item.id
        runs = {run.id: run for run in session.exec(select(t.RunRow).where(where))}
        for run in runs.values():
            if not RunState(run.state).ended or is_deleted(session, run.id):
                raise Conflict(f"{run.name} ({run.id}) has not ended, or was deleted.")
        provenance = [str(run.provenance_sha256) for run in runs.values()]
        ids = {"id": [item.id, *runs], "run_id": [*runs], "rollout_id": [item.id]}
        rows: Rows = {}
        for table, column in TABLES.items():
            known = among(getattr(table, column), ids.get(column, provenance))
            found = session.exec(select(table).where(known).order_by(*inspect(table).primary_key))
            plain = [row.model_dump(mode="json", exclude={*_own(table)}) for row in found]
            rows[str(table.__tablename__)] = plain
    for row in (*rows["sweeps"], *rows["runs"], *rows["rollouts"]):
        (row["spec"].get("run") or row["spec"])["env"] = {}
    for row in rows["checkpoints"]:
        row.update(dict.fromkeys(("copy_url", "copy_state", "copy_at", "copy_error")))
        row["removed_at"] = row["removed_at"] or row["created_at"]
    if isinstance(item, t.RunRow):
        rows["runs"][0]["sweep_id"], rows["trials"] = None, []
    return rows


def add_rows(store: Store, rows: Rows, item_id: str, origin: str) -> bool:
    """Record the rows under their own ids; return False if they are here.

    Nothing starts: the runs have ended. ``origin`` is written before the notes.

    Raises:
        ValueError: they are not of ended runs; also KeyError and TypeError.
        Conflict: other runs are here under an id, or one was deleted.
    """
    # A table's own constructor checks nothing.
    made: list[Any] = [
        table.model_validate({**row, **_own(table)})
        for table in TABLES
        for row in rows[str(table.__tablename__)]
    ]
    items = {row.id: row for row in made if isinstance(row, Item)}
    runs = [row for row in made if isinstance(row, t.RunRow)]
    known = {None, *(run.id for run in runs if RunState(run.state).ended and _ID.fullmatch(run.id))}
    for row in made:
        run_id = row.id if isinstance(row, t.RunRow) else getattr(row, "run_id", None)
        attempt = isinstance(row, t.Attempt) and row.id != f"{row.run_id}-{row.number}"
        if attempt or item_id not in items or run_id not in known:
            raise ValueError(f"{row!r:.200}")
    for row in items.values():
        load_spec(row.spec)
    with store.db.write(what="add_rows") as session:
        here: list[Any] = []
        for table in (t.RunRow, t.SweepRow, t.RolloutRow):
            here += session.exec(select(table).where(among(table.id, items))).all()
        for one in here:
            deleted = is_deleted(session, one.id)
            if (
                deleted
                or item_id not in {row.id for row in here}
                or _content(one) != _content(items[one.id])
            ):
                why = "was deleted" if deleted else "is here already, with other content"
                hint = "Open the file in another home (LEHR_HOME)."
                raise Conflict(f"{one.name} ({one.id}) {why}.", hint=hint)
        for row in made if not here else ():
            if isinstance(row, t.ProvenanceRow):
                keep_provenance(session, row.data)
                continue
            if origin and isinstance(row, Item):
                row.tags = [*dict.fromkeys([*row.tags, OPENED])]
                row.note, row.submitted_by = f"{origin}\n\n{row.note}".strip(), OPENED
            session.add(row)
            session.flush()
        announce_runs(store.db, [(run.id, run.sweep_id) for run in runs])
    return not here


def _content(row: Item) -> object:
    run = {**(row.spec.get("run") or {}), "env": {}}
    return type(row), row.created_at, {**row.spec, "env": {}, "run": run}
