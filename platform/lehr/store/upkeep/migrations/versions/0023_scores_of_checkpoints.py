"""The value of a task that decides which checkpoint is the best."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("score", sa.Float(), nullable=True))
