"""One Ray node of this machine as a process: started with fixed options, found again, ended.

``python -P -m lehr.cluster.ray_process start`` is that process. Never run ``ray stop``: it ends all
Rays of the machine. Processes of a node carry a mark in their environment; only these are ended.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lehr.base import procfs
from lehr.errors import InternalError

MARK = "LEHR_RAY_HEAD"  # Environment variable of all processes of one Ray node.
START_S = 90.0
OBJECT_STORE_BYTES = 80_000_000
"""Lehr does not use the object store; by default Ray would give it 30 % of the memory."""


_UP = b"Ray runtime started"


@dataclass(frozen=True)
class RayProcess:
    """A Ray node of this machine, as recorded in a home: the head, or one that joined another."""

    address: str  # Of the head: host and port.
    gpus: int
    mark: str
    pid: int
    start_time: int
    boot_id: str
    versions: str = ""  # ``versions()`` when it was started.
    base_port: int = 0  # Its first port, if its ports are fixed.

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the recorded Ray node; None if there is no record."""
        try:
            return cls(**procfs.read_json(str(path)))
        except TypeError:
            return None

    def write(self, path: Path) -> None:
        procfs.write_json(str(path), asdict(self), mode=0o600, durable=True)

    def running(self) -> bool:
        """Return whether its first process runs; it ends when any other process of Ray ends."""
        return procfs.is_same(self.pid, self.start_time, self.boot_id)

    def alive(self) -> bool:
        if not self.running():
            return False
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=5):
                return True
        except OSError:
            return False

    def processes(self) -> list[int]:
        return procfs.marked(MARK, self.mark)


def versions() -> str:
    """Return the versions that all nodes of a cluster must share: Python's and Ray's."""
    return f"Python {platform.python_version()}, Ray {importlib.metadata.version('ray')}"


def environment(given: Mapping[str, str], *, mark: str, node_folder: Path) -> dict[str, str]:
    """Return the environment of a Ray node, without what the caller's own Ray may have set."""
    return {
        **{
            name: value
            for name, value in given.items()
            if not name.startswith("RAY_") and name != "WANDB_API_KEY"
        },
        MARK: mark,
        "LEHR_NODE": str(node_folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # Ray makes its workers nice by 15, and trainings would inherit that.
        "RAY_worker_niceness": "0",
        # It would end the agent when trainings fill the memory; Ray must not watch their memory.
        "RAY_memory_monitor_refresh_ms": "0",
    }


def command(
    *options: str, node_ip: str, gpus: int, node: str, temporary: Path, ports: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a Ray node. ``options``: of a head, or of a node that joins."""
    return [
        *(sys.executable, "-P", "-m", "lehr.cluster.ray_process", "start", *options, "--block"),
        *("--node-ip-address", node_ip),
        *("--num-cpus", "0", "--num-gpus", str(gpus)),
        *("--object-store-memory", str(OBJECT_STORE_BYTES)),
        "--include-log-monitor",
        "false",
        # The default is a fixed port, which a second node on the machine could not use.
        *("--dashboard-agent-listen-port", "0"),
        "--disable-usage-stats",
        *("--labels", f"lehr.node={node}"),
        *ports,
        # Ray opens its folder to everybody (mode 0777); the parent folder stays closed.
        *("--temp-dir", str(temporary / "r")),
    ]


def start(
    command_line: Sequence[str],
    *,
    environment: Mapping[str, str],
    address: str,
    gpus: int,
    base_port: int,
    temporary: Path,
    log_path: Path,
    versions: str,
    record: Callable[[RayProcess], None],
    stopping: Callable[[], bool] = lambda: False,
) -> RayProcess:
    """Start a Ray node and wait until it runs, or until ``stopping``. ``record`` is called before.

    Raises:
        InternalError: Ray did not start; the message has its last lines.
        OSError: it could not be recorded, and was ended.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    # Appended to, so that it can be emptied while Ray writes (lehr.base.own_logs).
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command_line,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=temporary,
            env=dict(environment),
            start_new_session=True,
        )
    started = RayProcess(
        address=address,
        gpus=gpus,
        mark=environment[MARK],
        pid=process.pid,
        start_time=procfs.start_time(process.pid) or 0,
        boot_id=procfs.boot_id(),
        versions=versions,
        base_port=base_port,
    )
    # Recorded before it is up, so that whoever stops it finds it in any case.
    try:
        record(started)
    except BaseException:
        end(started)
        raise
    deadline = time.monotonic() + START_S
    while _UP not in log_path.read_bytes():
        if stopping() or process.poll() is not None or time.monotonic() > deadline:
            end(started)
            log_text = log_path.read_text(errors="replace")
            # Of a traceback only its error: the lines of Ray's code tell a reader nothing.
            *_, log_end = log_text.split("Traceback (most recent call last):\n")
            lines = [line for line in log_end.splitlines() if line.strip() and line[0] != " "]
            words = " / ".join(lines[-5:]) or "it wrote nothing"
            raise InternalError(f"Ray did not start: {words}", hint=f"See {log_path}.")
        time.sleep(0.05)
    return started


def end(process: RayProcess) -> list[int]:
    """End all processes with its mark and their descendants, raylets first.

    A raylet that gets SIGTERM ends at once, with its agents and workers. If the GCS got the signal
    at the same time, the raylet would wait for processes that are gone. The other processes have
    nothing to save, and Ray's own parent process would take seconds to end them.

    Ray's agents overwrite their environment with their titles, including the mark. And a process
    that ends loses its environment before it is gone. So all that were found once are watched by
    their start times. Shims are no descendants, because of a double fork. And the kernel shows no
    environment of a program that it is still loading, so the first process is known by its id.
    """
    marked = process.processes()
    if process.running():
        marked.append(process.pid)
    known = procfs.descendants(marked)
    raylets = {pid: started for pid, started in known.items() if _name(pid) == "raylet"}
    for pid in raylets:
        procfs.send(pid, signal.SIGTERM)
    ended = set(raylets)
    _until_none(lambda: [pid for pid in raylets if _still(pid, raylets[pid])], 5.0, ended)

    def kill_left() -> list[int]:
        known.update(
            {pid: at for pid in process.processes() if (at := procfs.start_time(pid)) is not None}
        )
        found = [pid for pid, started in known.items() if _still(pid, started)]
        for pid in found:
            procfs.send(pid, signal.SIGKILL)
        ended.update(found)
        return found

    _until_none(kill_left, 10.0, ended)
    return sorted(ended)


def _until_none(left: Callable[[], list[int]], within_s: float, ours: set[int]) -> None:
    deadline = time.monotonic() + within_s
    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
        reap(ours)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _still(pid: int, started: int) -> bool:
    return procfs.start_time(pid) == started


def reap(pids: Iterable[int]) -> None:
    """Collect ended children of this process, or they stay as zombies."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def prepare_folder(path: Path) -> None:
    """Make Ray's folder in the shared temporary one, and remove the sessions of earlier Ray nodes
    except the newest, which may show why it ended.

    Raises:
        InternalError: it exists and belongs to another user, who may have prepared it.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise InternalError(f"{path} belongs to another user", hint="Remove it, or set TMPDIR.")
    path.chmod(0o700)
    sessions = sorted(old for old in (path / "r").glob("session_2*") if not old.is_symlink())
    for old in sessions[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def new_mark() -> str:
    return secrets.token_hex(8)


def main() -> None:
    """Run Ray's own ``ray start`` without client server and dashboard.

    The client server runs code for anybody who connects, has no option to disable it, and takes a
    fixed port by default. Ray starts the dashboard's process even if the dashboard is disabled, and
    the raylet only after it, which would add a second to every ``lehr up``.
    """
    from ray._private.node import Node
    from ray.scripts import scripts

    def without_dashboard(node: Any, **_: Any) -> None:
        node._webui_url = ""  # noqa: SLF001 - all that Ray itself leaves of one that is off

    scripts.get_ray_client_dependency_error = lambda: "off: Lehr does not use it"
    Node.start_api_server = without_dashboard
    scripts.cli()


if __name__ == "__main__":
    main()
