"""The last rewind of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("runs", sa.Column("rewound", sa.JSON(), nullable=True))
