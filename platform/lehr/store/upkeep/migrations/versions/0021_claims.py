"""The claim of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("runs", sa.Column("claim", sa.JSON(), nullable=True))
