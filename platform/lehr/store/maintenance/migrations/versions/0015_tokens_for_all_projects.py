"""Revoke tokens that are limited to projects: without the limit they would open all of them."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        sa.text(
            "UPDATE access_tokens SET revoked_at = coalesce(revoked_at, :now)"
            " WHERE projects IS NOT NULL"
        ).bindparams(now=time.time())
    )
    op.drop_column("access_tokens", "projects")
    op.drop_table("capsule_senders")
    # SQLite cannot change a primary key.
    op.rename_table("saved_views", "saved_views_before")
    op.create_table(
        "saved_views",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("query", sa.String(), nullable=False),
        sa.Column("saved_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    # Of a name that several tokens used, the view of tokens for all projects ('') stays.
    op.execute(
        "INSERT OR IGNORE INTO saved_views (name, query, saved_at)"
        " SELECT name, query, saved_at FROM saved_views_before ORDER BY projects"
    )
    op.drop_table("saved_views_before")
