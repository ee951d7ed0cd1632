"""Limit tokens to projects, and with them saved views and the capsules that they sent."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("access_tokens", sa.Column("projects", sa.JSON(), nullable=True))
    op.create_table(
        "capsule_senders",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("sent_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "project"),
    )
    # SQLite cannot change a primary key.
    op.rename_table("saved_views", "saved_views_before")
    op.create_table(
        "saved_views",
        sa.Column("projects", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("query", sa.String(), nullable=False),
        sa.Column("saved_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("projects", "name"),
    )
    op.execute(
        "INSERT INTO saved_views (projects, name, query, saved_at)"
        " SELECT '', name, query, saved_at FROM saved_views_before"
    )
    op.drop_table("saved_views_before")
