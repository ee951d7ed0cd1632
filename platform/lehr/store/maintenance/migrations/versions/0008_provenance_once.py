"""Store provenance once for all runs that share it; keep of a keyed request what it made."""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_AT_ONCE = 200
"""Rows in memory at a time: a diff may have 256 KiB."""


def upgrade() -> None:
    op.create_table(
        "provenance",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.execute(
        "ALTER TABLE runs ADD COLUMN provenance_sha256 VARCHAR REFERENCES provenance (sha256)"
    )
    _move_provenance(op.get_bind())
    op.execute("ALTER TABLE runs DROP COLUMN provenance")
    op.create_index("ix_runs_provenance_sha256", "runs", ["provenance_sha256"], unique=False)
    # Whoever rebuilds the table `runs` must create this trigger again.
    op.execute(
        "CREATE TRIGGER provenance_unused AFTER DELETE ON runs"
        " WHEN OLD.provenance_sha256 IS NOT NULL BEGIN"
        " DELETE FROM provenance WHERE sha256 = OLD.provenance_sha256 AND NOT EXISTS"
        " (SELECT 1 FROM runs WHERE provenance_sha256 = OLD.provenance_sha256); END"
    )
    _shorten_answers()


def _move_provenance(connection: Any) -> None:
    after = 0
    while True:
        rows = connection.exec_driver_sql(
            "SELECT number, provenance FROM runs WHERE number > ? ORDER BY number LIMIT ?",
            (after, _AT_ONCE),
        ).all()
        if not rows:
            return
        after = rows[-1][0]
        for number, text in rows:
            data = json.loads(text)
            if not data:
                continue
            canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
            key = hashlib.sha256(canonical.encode()).hexdigest()
            connection.exec_driver_sql(
                "INSERT OR IGNORE INTO provenance (sha256, data) VALUES (?, ?)", (key, text)
            )
            connection.exec_driver_sql(
                "UPDATE runs SET provenance_sha256 = ? WHERE number = ?", (key, number)
            )


def _shorten_answers() -> None:
    """Keep the id alone: each answer so far was the view of a run, a sweep or a rollout."""
    op.create_table(
        "answers",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("request_sha256", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("made", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.execute(
        "INSERT INTO answers (key, request_sha256, status, made, created_at)"
        " SELECT key, request_sha256, status, json_extract(body, '$.id'), created_at"
        " FROM idempotency_keys WHERE json_extract(body, '$.id') IS NOT NULL"
    )
    op.drop_table("idempotency_keys")
    op.rename_table("answers", "idempotency_keys")
