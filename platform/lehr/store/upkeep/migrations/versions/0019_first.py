"""The tables of version 0.1.0, which ``migrate`` creates; later revisions begin here."""

revision = "0019"
down_revision = None
