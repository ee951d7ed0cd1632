"""The parts of a support bundle, each collected when it is read."""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lehr import __version__, formats
from lehr import home as homes
from lehr.check import Check
from lehr.errors import NotFound, UserError, nearest
from lehr.secret_text import is_secret_name
from lehr.store.ids import is_part_of_an_id
from lehr_trainer.runtime.installed import distributions

_LOG_BYTES = 4_000_000
"""The end of each log: one file of a server's log has at most 20 MB, which pack to a tenth."""
_ROWS = 5_000
"""Most rows of one table that a run brings along, the newest."""
_RAY_LOGS = ("raylet.*", "gcs_server.*", "monitor.*", "log_monitor.*", "dashboard.*")


@dataclass(frozen=True)
class BundledFile:
    name: str
    """Path inside the archive."""
    read: Callable[[], str]


def find_runs(home: Path, wanted: Sequence[str]) -> list[str]:
    """Return the id of each run, given by its id, a unique prefix of it, or its name.

    Raises:
        NotFound: there is no such run.
        UserError: several runs match.
    """
    if not wanted:
        return []
    with closing(_database(home)) as connection:
        rows = connection.execute("SELECT id, name FROM runs").fetchall()
    found = []
    for text in wanted:
        matching = (
            [key for key, _ in rows if key == text]
            or [key for key, name in rows if name == text]
            or [key for key, _ in rows if is_part_of_an_id(text) and key.startswith(text)]
        )
        if not matching:
            near = nearest(text, [one for row in rows for one in row])
            raise NotFound(
                f"{home} has no run {text!r}.",
                hint=f"Did you mean {near}?" if near else "All runs: lehr ls",
            )
        if len(matching) > 1:
            some = ", ".join(sorted(matching)[:5])
            raise UserError(f"{text!r} names {len(matching)} runs: {some}. Give one id.")
        found.append(matching[0])
    return found


def parts(
    home: Path, run_ids: Sequence[str], checks: Callable[[], Sequence[Check]]
) -> Iterator[BundledFile]:
    """Yield what a bundle of this home has: the machine, the databases, the logs, the runs."""
    yield BundledFile("machine.json", lambda: _json(_machine(home)))
    yield BundledFile("checks.json", lambda: _json([asdict(check) for check in checks()]))
    yield BundledFile("processes.json", lambda: _json(_processes(home)))
    yield BundledFile("files.json", lambda: _json(_files(home)))
    yield BundledFile("database/check.json", lambda: _json(_findings(home)))
    yield BundledFile("database/summary.json", lambda: _json(_summary(home)))
    for path in sorted(homes.logs_dir(home).glob("*")):
        if path.is_file():
            yield _log(f"logs/{path.name}", path)
    ray = homes.ray_dir(home) / "session_latest" / "logs"
    for path in sorted({path for pattern in _RAY_LOGS for path in ray.glob(pattern)}):
        if path.is_file():
            yield _log(f"ray/{path.name}", path)
    for run_id in run_ids:
        yield from _run(home, run_id)


def _run(home: Path, run_id: str) -> Iterator[BundledFile]:
    with closing(_database(home)) as connection:
        tables = [
            (table, column)
            for table in _tables(connection)
            for column in [_run_column(connection, table)]
            if column is not None
        ]
    for table, column in sorted(tables):
        rows = partial(_rows, home, table, column, run_id)
        yield BundledFile(f"runs/{run_id}/{table}.json", partial(_json_of, rows))
    attempts = homes.node_dir(home) / "attempts"
    recorded = homes.replica_dir(home)
    for folder in sorted([*attempts.glob(f"{run_id}-*"), *recorded.glob(f"{run_id}-*")]):
        for path in sorted(folder.glob("*.log")):
            yield _log(f"runs/{run_id}/{folder.name}/{path.name}", path)


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    return [name for (name,) in found]


def _run_column(connection: sqlite3.Connection, table: str) -> str | None:
    columns = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
    return "id" if table == "runs" else "run_id" if "run_id" in columns else None


def _rows(home: Path, table: str, column: str, run_id: str) -> list[dict[str, Any]]:
    with closing(_database(home)) as connection:
        connection.row_factory = sqlite3.Row
        found = connection.execute(
            f'SELECT * FROM "{table}" WHERE "{column}" = ? ORDER BY rowid DESC LIMIT {_ROWS}',  # noqa: S608 - names of our tables
            (run_id,),
        )
        return [
            {name: row[name] for name in row.keys() if not is_secret_name(name)}  # noqa: SIM118
            for row in found
        ]


def _machine(home: Path) -> dict[str, Any]:
    return {
        "lehr": __version__,
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "home": str(home),
        "packages": distributions(),
    }


def _processes(home: Path) -> list[dict[str, Any]]:
    """Describe the processes whose command names the home."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "create_time", "status"]):
        if any(str(home) in word for word in process.info["cmdline"] or ()):
            with process.oneshot():
                try:
                    more = {
                        "memory_bytes": process.memory_info().rss,
                        "threads": process.num_threads(),
                        "open_files": process.num_fds(),
                        "processor_s": sum(process.cpu_times()[:2]),
                    }
                except psutil.Error:
                    more = {}
            found.append({**process.info, **more})
    return found


def _files(home: Path) -> dict[str, Any]:
    """Return size and time of the home's own files, and the space of its disks."""
    listed = {
        path.name: {"size_bytes": path.stat().st_size, "modified_at": path.stat().st_mtime}
        for path in sorted(home.iterdir())
        if path.is_file()
    }
    disks = {}
    for folder in (home, homes.runs_dir(home), homes.data_dir(home), homes.replica_dir(home)):
        if folder.is_dir():
            usage = shutil.disk_usage(folder)
            disks[str(folder)] = (
                f"{formats.size(usage.free)} of {formats.size(usage.total)} are free"
            )
    return {"files": listed, "disks": disks}


def _findings(home: Path) -> list[dict[str, str]]:
    from lehr.store.maintenance.integrity import check

    return [{"level": one.level, "where": one.where, "message": one.message} for one in check(home)]


def _summary(home: Path) -> dict[str, Any]:
    with closing(_database(home)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {
            "revision": connection.execute("SELECT version_num FROM alembic_version").fetchone()[0],
            "rows": {
                name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
                for name in tables
            },
            "runs by state": dict(
                connection.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall()
            ),
            "newest transitions": connection.execute(
                "SELECT at, run_id, attempt, old, new, cause, message FROM transitions"
                " ORDER BY id DESC LIMIT 200"
            ).fetchall(),
        }


def _log(name: str, path: Path) -> BundledFile:
    return BundledFile(name, lambda: _tail(path))


def _tail(path: Path) -> str:
    """Return the whole lines at the end of a file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_BYTES))
        if size > _LOG_BYTES:
            file.readline()
        return file.read().decode("utf-8", "replace")


def _database(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(home / 'lehr.db'))}?mode=ro", uri=True, timeout=10)


def _json_of(read: Callable[[], Any]) -> str:
    return _json(read())


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n"
