"""Back up and restore a home's databases, rebuild the index.

A backup may be taken while the server runs. The others need it stopped: they take the home's
lock. ``lehr.store.upkeep.integrity`` checks for damage.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import time
from calendar import timegm
from contextlib import closing
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from pathlib import Path

from lehr import __version__
from lehr.base import home as homes
from lehr.code import archive
from lehr.errors import Conflict, HomeUnusable, LehrError, NotFound, UserError
from lehr.store.read_only import open_read_only
from lehr.store.secret_store import SecretStore
from lehr.store.store import RESTORING, Store
from lehr.store.streams import index
from lehr.store.streams.replica import GAPS, is_name
from lehr.store.upkeep import capsules, integrity, lost_record, migrate
from lehr.store.upkeep.rebuild_record import RebuiltRecord, rebuild_record
from lehr_trainer.files import fsync_folder

_MANIFEST = "backup.json"
_DATED = "%Y%m%dT%H%M%SZ"
_FORMAT = 1
_KEPT = ("created_at", "version", "revision", "runs", "left_out", "files")
"""The fields of a backup that its manifest keeps."""


@dataclass(frozen=True)
class Backup:
    folder: Path
    created_at: float
    version: str  # The version of Lehr that made the backup.
    revision: str
    runs: int
    files: dict[str, tuple[int, str]]  # Size and SHA-256 by path in the folder.
    missing: tuple[str, ...] = ()
    """A sentence for each capsule that a run needs and that was not there to copy."""
    damaged: tuple[str, ...] = ()
    """What SQLite found damaged in lehr.db. The copy has the same damage."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Names of the home's secrets, which a backup does not have."""

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True)
class Rebuilt:
    streams: int
    points: int
    records: int
    malformed: int
    seconds: float
    record: RebuiltRecord | None  # What was made of the record; None if it was not lost.


def backup(home: Path, target: Path) -> Backup:
    """Copy a consistent ``lehr.db``, replica and capsules, also under load.

    The database is copied first and streams only grow, so that the copied streams hold at least
    what the copied database has applied. The index is not copied: a restore rebuilds it. Tokens
    and run directories (checkpoints) are not part of a backup.
    """
    source = home / "lehr.db"
    revision = migrate.revision(source)
    if revision is None:
        raise NotFound(f"{home} holds no lehr.db: nothing to back up.")
    if target.exists():
        raise Conflict(f"{target} already exists.", hint="Choose a folder that does not exist yet.")
    draft = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        draft.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UserError(f"{draft.parent} cannot be written: {error.strerror}.") from error
    try:
        damaged = _copy_database(source, draft / "lehr.db")
        with closing(sqlite3.connect(draft / "lehr.db")) as copy:
            runs = copy.execute("SELECT count(*) FROM runs").fetchone()[0]
            attempts = {row[0] for row in copy.execute("SELECT id FROM attempts")}
        files = {"lehr.db": _digest(draft / "lehr.db")}
        replica = homes.replica_dir(home)
        for attempt in sorted(attempts):
            for path in sorted((replica / attempt).glob("*")):
                if not (path.name == GAPS or is_name(path.name)) or not path.is_file():
                    continue
                copied = draft / "replica" / attempt / path.name
                copied.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(path, copied, follow_symlinks=False)
                files[str(copied.relative_to(draft))] = _digest(copied)
        for copied in capsules.copied(home, draft / capsules.FOLDER, draft / "lehr.db"):
            index.flush(copied)
            files[str(copied.relative_to(draft))] = _digest(copied)
        missing = tuple(capsules.missing(draft / "lehr.db", draft))
        at, left_out = time.time(), _left_out(home)
        found = Backup(target, at, __version__, revision, runs, files, missing, damaged, left_out)
        _write_manifest(draft, found)
        for folder in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
            fsync_folder(folder)
        draft.rename(target)
        fsync_folder(target.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return found


def backup_and_rotate(home: Path, folder: Path, *, keep: int) -> tuple[Backup, list[Path]]:
    """Make a new backup in ``folder``, named by its time, and remove all but the newest ``keep``.

    Only complete backups with such a name are counted and removed, and only after the new one is
    complete; none, if the record is damaged.

    Returns:
        The backup, and the folders that were removed.
    """
    times = {
        path: named_at
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (named_at := _time_of(path)) is not None
        and (path / _MANIFEST).is_file()
        and not path.is_symlink()
    }
    now = max(time.time(), max(times.values(), default=-1) + 1)
    made = backup(home, folder / time.strftime(_DATED, time.gmtime(now)))
    old = [*sorted(times, key=lambda path: times[path]), made.folder][:-keep]
    if made.damaged:  # Those before the damage may be the only whole ones.
        old = []
    for path in old:
        shutil.rmtree(path)
    return made, old


def _time_of(folder: Path) -> int | None:
    """Return the time in the name of a dated backup, in seconds; None for other names."""
    try:
        named_at = timegm(time.strptime(folder.name, _DATED))
    except ValueError:
        return None
    return named_at if time.strftime(_DATED, time.gmtime(named_at)) == folder.name else None


def read_backup(folder: Path) -> Backup:
    """Read what a backup holds, and compare every file with its digest."""
    try:
        data = json.loads((folder / _MANIFEST).read_bytes())
        if data["format"] != _FORMAT:
            raise UserError(f"{folder} is a backup in another format, {data['format']!r}.")
        files = {path: (int(size), str(digest)) for path, (size, digest) in data["files"].items()}
        fields = {name: data[name] for name in _KEPT} | {"files": files}
        found = Backup(folder=folder, **fields)
    except FileNotFoundError:
        raise NotFound(f"{folder} is not a backup: it has no {_MANIFEST}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / _MANIFEST} cannot be read: {error!r}.") from error
    for path, expected in files.items():
        inside = folder / path
        if not inside.resolve().is_relative_to(folder.resolve()) or not inside.is_file():
            raise UserError(f"{folder} is damaged: {path} is missing.")
        if _digest(inside) != expected:
            raise UserError(f"{folder} is damaged: {path} differs from the backed-up file.")
    return found


def restore(folder: Path, home: Path, *, replace: bool = False) -> Backup:
    """Restore a backup into a home; with ``replace`` its present databases are set aside.

    Nothing is changed before the whole backup was read and verified. After an interrupted
    restore the server does not start until the restore was repeated. The home then starts no run
    until it is released. ``left_out`` of what is returned: what this home lacks now.
    """
    found = read_backup(folder)
    with homes.lock(home):
        restoring = home / RESTORING
        if (home / "lehr.db").exists() and not (replace or restoring.exists()):
            raise Conflict(
                f"{home} already holds a lehr.db.",
                hint="Restore into a different LEHR_HOME, or pass --replace.",
            )
        if restoring.exists():
            shutil.rmtree(restoring)
        restoring.mkdir(mode=0o700)
        for path in found.files:
            copied = restoring / path
            copied.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(folder / path, copied)
            index.flush(copied)
        (restoring / "replica").mkdir(exist_ok=True)
        _set_aside(home)
        capsules.adopt(restoring / capsules.FOLDER, home)
        (restoring / "replica").rename(home / "replica")
        (restoring / "lehr.db").rename(home / "lehr.db")
        fsync_folder(home)
        restoring.rmdir()
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.created_at))
        homes.hold(home, f"the record is that of {when}; a server may train its runs since then")
        there = _left_out(home)
        lacking = {
            kind: [name for name in names if name not in there.get(kind, ())]
            for kind, names in found.left_out.items()
        }
        missing = tuple(capsules.missing(home / "lehr.db", home))
        return with_fields(found, missing=missing, left_out=lacking)


def rebuild(home: Path) -> Rebuilt:
    """Rebuild ``streams.db`` from the replica, and ``lehr.db`` if it is lost."""
    begun = time.monotonic()
    with homes.lock(home):
        record = rebuild_record(home) if lost_record.is_lost(home) else None
        received = integrity.received(home / "streams.db")
        index.remove(home / "streams.db")
        with Store.open(home) as store, store.index.read() as connection:
            streams, malformed = connection.execute(
                "SELECT count(*), coalesce(sum(malformed), 0) FROM streams"
            ).fetchone()
            (points,) = connection.execute(
                "SELECT coalesce(sum(points), 0) FROM latest WHERE metric > 0"
            ).fetchone()
            (records,) = connection.execute("SELECT count(*) FROM records").fetchone()
        integrity.keep_received(home / "streams.db", received)
    return Rebuilt(streams, points, records, malformed, time.monotonic() - begun, record)


def _set_aside(home: Path) -> None:
    """Set the present databases aside; delete the index, which can be rebuilt."""
    there = [home / name for name in ("lehr.db", "lehr.db-wal", "lehr.db-shm", "replica")]
    there = [path for path in there if path.exists()]
    if there:
        prefix = f"replaced-{time.strftime('%Y%m%d-%H%M%S')}-"
        kept = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        capsules.link(home, kept)
        for path in there:
            path.rename(kept / path.name)
    index.remove(home / "streams.db")


def _copy_database(source: Path, target: Path) -> tuple[str, ...]:
    """Copy the database consistently while others write to it. Return what is damaged in it."""
    try:
        with (
            closing(open_read_only(source, timeout=30)) as running,
            closing(sqlite3.connect(target)) as copy,
        ):
            running.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            problems = [row[0] for row in copy.execute("PRAGMA integrity_check(10)")]
    except sqlite3.Error as error:
        raise HomeUnusable(f"{source} cannot be copied: {error}.") from error
    target.chmod(0o600)
    index.flush(target)
    return () if problems == ["ok"] else tuple(f"{source} is damaged: {one}" for one in problems)


def _left_out(home: Path) -> dict[str, list[str]]:
    """Return the names of the home's secrets."""
    try:
        return {"secrets": [one.name for one in SecretStore(home).all()]}
    except LehrError:
        return {"secrets": ["(unreadable)"]}


def _digest(path: Path) -> tuple[int, str]:
    return path.stat().st_size, archive.digest_of(path)


def _write_manifest(folder: Path, found: Backup) -> None:
    data = {"format": _FORMAT, **{name: getattr(found, name) for name in _KEPT}}
    path = folder / _MANIFEST
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    index.flush(path)
