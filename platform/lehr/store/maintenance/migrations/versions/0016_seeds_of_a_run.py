"""Record the run that a sweep repeats with other seeds, so that its own sweep can count them."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweeps", sa.Column("seeds_of", sa.String(), nullable=True))
    op.create_index("ix_sweeps_seeds_of", "sweeps", ["seeds_of"])
    op.execute(
        "UPDATE sweeps SET seeds_of = ("
        " SELECT json_extract(data, '$.seeds_of.run') FROM provenance JOIN runs"
        " ON sha256 = provenance_sha256 WHERE sweep_id = sweeps.id LIMIT 1)"
    )
