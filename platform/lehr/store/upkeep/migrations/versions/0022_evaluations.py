"""The checkpoint that a run evaluates."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("runs", sa.Column("evaluates", sa.String(), nullable=True))
    op.create_index("ix_runs_evaluates", "runs", ["evaluates"], unique=True)
