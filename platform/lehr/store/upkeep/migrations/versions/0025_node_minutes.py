"""Figures of nodes and GPUs by the minute."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    figures = ("utilization", "memory_used_bytes", "temperature_celsius", "power_watts")
    op.create_table(
        "node_minutes",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("gpu", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        *(sa.Column(name, sa.Float()) for name in figures),
    )
    op.create_index("ix_node_minutes_node", "node_minutes", ["node", "at"])
