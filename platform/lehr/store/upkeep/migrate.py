"""Upgrade ``lehr.db`` to the tables of this version. Rows are kept; a newer file is refused."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

from sqlalchemy import Engine, text
from sqlmodel import SQLModel

from lehr.errors import HomeUnusable, InternalError
from lehr.store import tables
from lehr.store.read_only import open_read_only

assert tables  # Imported for its tables.

FIRST = "0019"  # The revision of version 0.1.0. Only development versions before it had lower ones.
HEAD = "0025"  # The revision of ``lehr.store.tables``; the newest in ``migrations/versions``.

_TRIGGER = (
    "CREATE TRIGGER provenance_unused AFTER DELETE ON runs WHEN OLD.provenance_sha256 IS NOT NULL"
    " BEGIN DELETE FROM provenance WHERE sha256 = OLD.provenance_sha256 AND NOT EXISTS (SELECT 1"
    " FROM runs WHERE provenance_sha256 = OLD.provenance_sha256); END"
)
_MIGRATIONS = Path(__file__).parent / "migrations"
_log = logging.getLogger("lehr.store")


def revision(path: Path) -> str | None:
    """Return the revision of a database file; None when it is new or empty.

    Raises:
        HomeUnusable: it is not a database of Lehr, or of a newer version.
    """
    if not path.exists():
        return None
    try:
        with closing(open_read_only(path)) as connection:
            tables = {
                name
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type='table'"
                )
            }
            if not tables:
                return None
            if "alembic_version" not in tables:
                raise HomeUnusable(
                    f"{path} is a database, but not of Lehr (it has no alembic_version)."
                )
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise HomeUnusable(
            f"{path} cannot be read as a database: {error}.",
            hint="Restore it from a backup: lehr db restore.",
        ) from error
    found = str(row[0]) if row else None
    if found is not None and not FIRST <= found <= HEAD:
        raise HomeUnusable(
            f"{path} was written by another version of Lehr (revision {found}; "
            f"this version knows {FIRST} to {HEAD}).",
            hint="Install that version again, or restore a backup from before the upgrade.",
        )
    return found


def upgrade(engine: Engine, path: Path) -> None:
    """Create the tables in a new file; to an older one, apply the missing revisions.

    Each is one transaction. A copy of an older file is kept beside it.
    """
    found = revision(path)
    if found is None:
        with engine.begin() as connection:
            SQLModel.metadata.create_all(connection)
            connection.exec_driver_sql(_TRIGGER)
            connection.exec_driver_sql(
                "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)"
            )
            connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
    elif found != HEAD:
        _copy_aside(path, found)
        _apply(engine, path, found)
        _log.info("%s upgraded from revision %s to %s", path, found, HEAD)


def _apply(engine: Engine, path: Path, found: str) -> None:
    # Imported here: only an older file needs it, and it takes a while.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with engine.connect() as connection:
        # A rebuilt table is dropped in between; that must not delete its child rows. SQLite ignores
        # the pragma inside a transaction, so the driver gets it before SQLAlchemy begins one.
        raw = cast(sqlite3.Connection, connection.connection.dbapi_connection)
        raw.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                dangling = connection.execute(text("PRAGMA foreign_key_check")).fetchall()
                if dangling:
                    raise InternalError(
                        f"{path}: the upgrade from revision {found} would leave rows without "
                        f"their parent: {dangling[:5]}; nothing was changed"
                    )
        finally:
            raw.execute("PRAGMA foreign_keys=ON")


def _copy_aside(path: Path, found: str) -> None:
    """Keep a copy of an older file beside the upgraded one."""
    kept = path.with_name(f"{path.name}.before-{HEAD}-{found}")
    if kept.exists():
        return
    draft = kept.with_name(f".{kept.name}.tmp")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(draft)) as copy:
        source.backup(copy)
    draft.replace(kept)
