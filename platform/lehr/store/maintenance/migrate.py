"""Upgrade ``lehr.db`` to the tables of this version. Rows are kept; a newer file is refused."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine, text

from lehr.errors import HomeUnusable, InternalError
from lehr.store.read_only import open_read_only

HEAD = "0019"
"""The newest revision in ``migrations/versions``; a test checks that."""

REVISIONS = tuple(f"{number:04}" for number in range(1, int(HEAD) + 1))
"""Every revision, oldest first."""

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
    if found is not None and found not in REVISIONS:
        raise HomeUnusable(
            f"{path} was written by a newer version of Lehr (revision {found}; "
            f"this version knows up to {HEAD}).",
            hint="Install that version again, or restore a backup from before the upgrade.",
        )
    return found


def upgrade(engine: Engine, path: Path, target: str = "head") -> None:
    """Apply missing revisions in one transaction, after copying an older file."""
    found = revision(path)
    if found == HEAD:
        return
    if found is not None:
        _copy_aside(path, found)
    # Imported here: only a new or an older file needs it, and it takes a while.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with engine.connect() as connection:
        # A rebuilt table is dropped in between; that must not delete its child rows.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.rollback()
        try:
            with connection.begin():
                config.attributes["connection"] = connection
                command.upgrade(config, target)
                dangling = connection.execute(text("PRAGMA foreign_key_check")).fetchall()
                if dangling:
                    raise InternalError(
                        f"{path}: the upgrade from revision {found} would leave rows without "
                        f"their parent: {dangling[:5]}; nothing was changed"
                    )
        finally:
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
            connection.rollback()
    if found is not None:
        _log.info("%s upgraded from revision %s to %s", path, found, HEAD)


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
