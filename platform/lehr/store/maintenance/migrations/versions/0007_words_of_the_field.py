"""Rename tables, columns and values to the field's words: trials, requests, heartbeats."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.rename_table("wishes", "requests")
    op.drop_index("ix_wishes_run_id", "requests")
    op.create_index("ix_requests_run_id", "requests", ["run_id"], unique=False)
    op.execute("ALTER TABLE requests RENAME COLUMN wish TO kind")
    op.rename_table("cells", "trials")
    for column in ("run_id", "sweep_id"):
        op.drop_index(f"ix_cells_{column}", "trials")
        op.create_index(f"ix_trials_{column}", "trials", [column], unique=False)
    op.execute("ALTER TABLE attempts RENAME COLUMN last_beat_at TO last_heartbeat_at")
    op.execute("ALTER TABLE node_notes RENAME COLUMN what TO kind")
    # Exact: inside a JSON string the closing quote would be escaped.
    op.execute("UPDATE attempts SET exit = replace(exit, '\"stand_in\":', '\"synthetic\":')")
    op.execute("UPDATE gate_verdicts SET gate = 'no_alerts' WHERE gate = 'no_alarm'")
    for table in ("runs", "sweeps", "rollouts"):
        _rewrite_specs(table)


def _rewrite_specs(table: str) -> None:
    connection = op.get_bind()
    rows = sa.table(table, sa.column("number", sa.Integer), sa.column("spec", sa.JSON))
    for number, old in connection.execute(sa.select(rows.c.number, rows.c.spec)).all():
        new = _renamed(old, table)
        if new != old:
            connection.execute(sa.update(rows).where(rows.c.number == number).values(spec=new))


def _renamed(spec: dict[str, Any], table: str) -> dict[str, Any]:
    if table == "runs":
        return _renamed_run(spec)
    new = {**spec, "run": _renamed_run(spec["run"])} if "run" in spec else dict(spec)
    if table == "sweeps":
        if "cells" in new:
            new["points"] = [
                {_path(path): value for path, value in point.items()}
                for point in new.pop("cells") or []
            ]
        if isinstance(new.get("parameters"), dict):
            new["parameters"] = {_path(path): v for path, v in new["parameters"].items()}
    else:
        new["stages"] = _renamed_gates(new.get("stages"))
    return new


def _renamed_gates(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {"no_alerts" if k == "no_alarm" else k: _renamed_gates(v) for k, v in value.items()}


def _renamed_run(spec: dict[str, Any]) -> dict[str, Any]:
    train = spec.get("train")
    if not isinstance(train, dict) or "recompute" not in train:
        return spec
    new = {_path(f"train.{key}").removeprefix("train."): value for key, value in train.items()}
    return {**spec, "train": new}


def _path(path: str) -> str:
    head = "train.recompute"
    if path == head or path.startswith(f"{head}."):
        return "train.activation_checkpointing" + path.removeprefix(head)
    return path
