"""Alembic environment: maintenance.migrate starts it, and owns the connection and transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
# The caller's transaction holds all revisions together.
context.run_migrations()
