"""Record until when nodes are available, in place of maintenance windows."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_until",
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("node"),
    )
    op.drop_table("maintenance_windows")
    # A run that is being stopped for a window goes on as one that is stopped for its node's end.
    op.execute("UPDATE runs SET cause = 'node_until' WHERE cause = 'maintenance'")
