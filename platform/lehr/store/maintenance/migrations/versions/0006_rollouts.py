"""Add rollouts: runs brought up in stages, with gates between them."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollouts",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_rollouts_name", "rollouts", ["name"], unique=False)
    op.create_index("ix_rollouts_project", "rollouts", ["project"], unique=False)
    op.create_table(
        "rollout_stages",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("rollout_id", "number"),
    )
    op.create_index("ix_rollout_stages_rollout_id", "rollout_stages", ["rollout_id"], unique=False)
    op.create_table(
        "rollout_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("rollout_id", "stage", "role"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index("ix_rollout_runs_rollout_id", "rollout_runs", ["rollout_id"], unique=False)
    op.create_table(
        "gate_verdicts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("gate", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("expected", sa.String(), nullable=False),
        sa.Column("seen", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("at_least", sa.Float(), nullable=True),
        sa.Column("at_most", sa.Float(), nullable=True),
        sa.Column("unit", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("rollout_id", "stage", "gate"),
    )
    op.create_index("ix_gate_verdicts_rollout_id", "gate_verdicts", ["rollout_id"], unique=False)
