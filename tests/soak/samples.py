"""What the server uses, read from /proc and its files without asking it: one row of a CSV at a time."""

from __future__ import annotations

import contextlib
import csv
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lehr.node import procfs
from soak.machines import SoakHost

MB = 1e6


@dataclass(frozen=True)
class Sample:
    hours: float
    """Of soak, added up over all calls."""
    server: str
    """Its pid and start time: another value is another process."""
    server_mb: float
    server_handles: int
    server_threads: int
    bridge: str
    bridge_mb: float
    agent: str
    agent_mb: float
    """The agent of alpha."""
    keeper: str
    keeper_mb: float
    """The keeper of beta."""
    wal_mb: float
    lehr_db_mb: float
    streams_db_mb: float
    replica_mb: float
    node_mb: float
    """The state of attempts on alpha's disk."""
    logs_mb: float
    home_mb: float
    """All of the disk that alpha's home uses."""
    rest: bool
    """Taken at the end of a chapter, with no run and no fault."""


def take(alpha: SoakHost, beta: SoakHost, hours: float, *, rest: bool) -> Sample | None:
    """Return a row; None while there is no server."""
    server = alpha.server()
    if server is None:
        return None
    home = alpha.home
    on_alpha = alpha.processes()
    bridge = _only(on_alpha, "lehr.cluster.bridge")
    agent = _only(on_alpha, "ray::Agent")
    keeper = _only(beta.processes(), "lehr.joining")
    try:
        status = Path(f"/proc/{server}/status").read_text()
        disk = os.statvfs(home)
        return Sample(
            hours=round(hours, 5),
            server=_life(server),
            server_mb=_rss_mb(server),
            server_handles=len(list(Path(f"/proc/{server}/fd").iterdir())),
            server_threads=int(_field(status, "Threads:")),
            bridge=_life(bridge),
            bridge_mb=_rss_mb(bridge),
            agent=_life(agent),
            agent_mb=_rss_mb(agent),
            keeper=_life(keeper),
            keeper_mb=_rss_mb(keeper),
            wal_mb=_files_mb(home.glob("*.db-wal")),
            lehr_db_mb=_files_mb(home.glob("lehr.db")),
            streams_db_mb=_files_mb(home.glob("streams.db")),
            replica_mb=_folder_mb(home / "replica"),
            node_mb=_folder_mb(home / "node"),
            logs_mb=_folder_mb(home / "logs"),
            home_mb=round((disk.f_blocks - disk.f_bfree) * disk.f_frsize / MB, 3),
            rest=rest,
        )
    except OSError:
        return None  # It ended meanwhile.


def append(path: Path, sample: Sample) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        if new:
            writer.writeheader()
        writer.writerow(asdict(sample))


def read(path: Path) -> list[Sample]:
    kinds = {"str": str, "int": int, "float": float, "bool": lambda text: text == "True"}
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["rest"]]  # Not one that was cut off.
    return [
        Sample(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Sample)})
        for row in rows
    ]


def _only(processes: dict[int, str], words: str) -> int | None:
    found = [pid for pid, line in processes.items() if words in line]
    return min(found) if found else None


def _life(pid: int | None) -> str:
    return f"{pid}@{procfs.start_time(pid)}" if pid is not None else ""


def _rss_mb(pid: int | None) -> float:
    if pid is None:
        return 0.0
    with contextlib.suppress(OSError, ValueError):
        text = _field(Path(f"/proc/{pid}/status").read_text(), "VmRSS:")
        return round(int(text) * 1024 / MB, 3)
    return 0.0


def _field(status: str, name: str) -> str:
    [line] = [one for one in status.splitlines() if one.startswith(name)]
    return line.split()[1]


def _files_mb(paths) -> float:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return round(total / MB, 3)


def _folder_mb(folder: Path) -> float:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(where, name).lstat().st_size
    return round(total / MB, 3)
