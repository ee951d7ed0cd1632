"""A home whose ``lehr.db`` is lost: what shows that it had one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from lehr.base import formats
from lehr.base import home as homes
from lehr.code.capsule_store import CapsuleStore
from lehr.errors import HomeUnusable
from lehr.store.ids import split_attempt_id
from lehr.store.upkeep import migrate
from lehr_trainer.contract import layout

WAYS_ON = (
    "To make it again from these files: lehr db rebuild. From a backup: lehr db restore FOLDER. "
    "To begin without the earlier runs: another LEHR_HOME, or move these files away."
)


def refuse(home: Path) -> None:
    """Refuse an empty or missing record beside files of runs: it would forget them.

    Raises:
        HomeUnusable: with the ways on.
    """
    path = home / "lehr.db"
    if is_lost(home):
        state = "empty" if path.exists() else "missing"
        left = "; ".join(left_behind(home))
        raise HomeUnusable(f"{path} is {state}, but it has left {left}.", hint=WAYS_ON)
    if not path.exists():
        CapsuleStore(home).keep_all()


def is_lost(home: Path) -> bool:
    """Return whether the record is missing or has no run, though there are files of runs."""
    path = home / "lehr.db"
    if migrate.revision(path) is not None and _has_runs(path):
        return False
    return next(left_behind(home), None) is not None


def left_behind(home: Path) -> Iterator[str]:
    """Yield what shows that the home had a record of runs."""
    if runs := replicated(home):
        yield f"{formats.counted(len(runs), 'run')} in {homes.replica_dir(home)}"
    if own_folder(home) and (folders := with_folder(home)):
        yield f"{formats.counted(len(folders), 'run')} in {homes.runs_dir(home)}"
    node = homes.node_dir(home)
    if attempts := [path for path in node.glob("*/attempts/*") if split_attempt_id(path.name)]:
        yield f"{formats.counted(len(attempts), 'attempt')} in {node}"


def replicated(home: Path) -> dict[str, list[int]]:
    """Return the runs with streams in the replica, with the numbers of their attempts."""
    runs: dict[str, list[int]] = {}
    for name in _entries(homes.replica_dir(home)):
        if attempt := split_attempt_id(name):
            runs.setdefault(attempt[0], []).append(attempt[1])
    return runs


def own_folder(home: Path) -> bool:
    """Return whether the folder of runs is in the home. Elsewhere, servers may share it."""
    return homes.runs_dir(home).resolve().is_relative_to(home.resolve())


def with_folder(home: Path) -> set[str]:
    """Return the ids of the runs with a folder."""
    runs = homes.runs_dir(home)
    names = [name for name in _entries(runs) if split_attempt_id(f"{name}-1")]
    return {name for name in names if layout.attempts(runs / name)}


def _has_runs(path: Path) -> bool:
    """Return whether the record has a run, or was begun without any, as 0.1.0 could (version 1)."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            (anew,) = connection.execute("PRAGMA user_version").fetchone()
            (runs,) = connection.execute("SELECT EXISTS (SELECT 1 FROM runs)").fetchone()
    except sqlite3.DatabaseError:
        return True  # It is damaged, not lost: whoever opens it says so.
    return bool(anew or runs)


def _entries(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in folder.iterdir()]
    return []
