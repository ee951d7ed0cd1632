"""Record that nodes are excluded and readmitted."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_notes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_node_notes_node", "node_notes", ["node"], unique=False)
    op.create_index("ix_attempts_exited_at", "attempts", ["exited_at"], unique=False)
