"""Record copies of checkpoints; find forks by the run that they start from."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("copy_url", sa.String(), nullable=True))
    op.add_column("checkpoints", sa.Column("copy_state", sa.String(), nullable=True))
    op.add_column("checkpoints", sa.Column("copy_at", sa.Float(), nullable=True))
    op.add_column("checkpoints", sa.Column("copy_error", sa.String(), nullable=True))
    op.create_index("ix_runs_forked_from", "runs", ["forked_from"], unique=False)
