"""What servers saw of nodes and of the queue over time."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "cluster_spans",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("seen", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("began", "ended")),
    )
    op.create_index("ix_cluster_spans_ended", "cluster_spans", ["ended"])
