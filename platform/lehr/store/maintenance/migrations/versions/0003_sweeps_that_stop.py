"""Record that a sweep stopped before its end, or was reopened."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweeps", sa.Column("stopped", sa.String(), nullable=True))
    op.add_column("sweeps", sa.Column("reopened_at", sa.Float(), nullable=True))
