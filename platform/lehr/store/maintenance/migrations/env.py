"""Alembic environment: maintenance.migrate starts it, and owns the connection and transaction."""

from alembic import context
from sqlmodel import SQLModel

from lehr.store import tables

assert tables  # Imported for its tables.

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
)
# The caller's transaction holds all revisions together.
context.run_migrations()
