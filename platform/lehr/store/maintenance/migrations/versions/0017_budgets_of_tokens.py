"""Add budgets to tokens, and the submitter to sweeps and rollouts, whose runs count for it."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("access_tokens", sa.Column("gpu_hours", sa.Float(), nullable=True))
    for table in ("sweeps", "rollouts"):
        column = sa.Column("submitted_by", sa.String(), nullable=False, server_default="user")
        op.add_column(table, column)
    op.execute(
        "UPDATE sweeps SET submitted_by = coalesce("
        " (SELECT submitted_by FROM runs WHERE sweep_id = sweeps.id ORDER BY number LIMIT 1),"
        " 'user')"
    )
