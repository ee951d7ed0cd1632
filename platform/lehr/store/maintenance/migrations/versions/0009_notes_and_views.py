"""Add notes that can be edited, and saved views of the runs page."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("runs", "sweeps", "rollouts"):
        op.add_column(table, sa.Column("note", sa.String(), nullable=False, server_default=""))
        op.execute(
            f"UPDATE {table} SET note = COALESCE(json_extract(spec, '$.notes'), '')"  # noqa: S608 - names of this file
        )
    op.create_table(
        "saved_views",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("query", sa.String(), nullable=False),
        sa.Column("saved_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
