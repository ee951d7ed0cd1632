"""Drop the saved views of the runs page: a bookmark of its address does the same."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("saved_views")
