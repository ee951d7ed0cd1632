"""An embedded Ray head: a daemon that outlives the server, and that the next server finds again.

Never run ``ray stop``: it ends every Ray on the machine. Processes of this head carry a mark in
their environment, and only marked processes are ended.

Ray runs with token authentication and without dashboard, client server and usage reports. Its GCS
and raylet listen on every interface, whatever the options, so the token protects them. It is stored
in the home, readable only by its owner.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lehr import home as homes
from lehr.errors import InternalError
from lehr.node import procfs

MARK = "LEHR_RAY_HEAD"
"""Environment variable of all processes of one head."""
START_S = 90.0
OBJECT_STORE_BYTES = 80_000_000
"""Lehr does not use the object store; by default Ray would give it 30 % of the memory."""


@dataclass(frozen=True)
class Head:
    """A head as recorded in ``<home>/ray/head.json``."""

    address: str
    gpus: int
    mark: str
    pid: int
    start_time: int
    boot_id: str

    def running(self) -> bool:
        """Return whether its first process runs; it ends when any other process of Ray ends."""
        return procfs.is_same(self.pid, self.start_time, self.boot_id)

    def alive(self) -> bool:
        """Return whether it runs and can be reached."""
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


def token_file(home: Path) -> Path:
    """Return the file with the Ray token; create it at the first call."""
    path = _folder(home) / "token"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def driver_environment(home: Path) -> dict[str, str]:
    """Return the environment variables for a process that connects to the home's embedded Ray."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file(home))}


def recorded(home: Path) -> Head | None:
    found = procfs.read_json(str(_folder(home) / "head.json"))
    try:
        return Head(**found)
    except TypeError:
        return None


def ensure(home: Path, gpus: int, *, node: str) -> Head:
    """Return the running head of this home, or start one.

    A head with another number of GPUs, or one that is only half alive, is stopped first. Trainings
    are not its children and continue.

    Raises:
        InternalError: Ray did not start; the message has its last lines.
    """
    with _starting(home):
        head = recorded(home)
        if head is not None:
            if head.gpus == gpus and head.alive():
                return head
            _end(head)
        return _start(home, gpus, node=node)


def stop(home: Path) -> list[int]:
    """Stop the home's head and all its processes. Return those that were ended."""
    with _starting(home):
        head = recorded(home)
        if head is None:
            return []
        ended = _end(head)
        (_folder(home) / "head.json").unlink(missing_ok=True)
        shutil.rmtree(homes.ray_dir(home), ignore_errors=True)
        return ended


def _start(home: Path, gpus: int, *, node: str) -> Head:
    temporary = homes.ray_dir(home)
    _own_folder(temporary)
    _forget_sessions(temporary / "r")
    address = f"{_node_ip()}:{_free_port()}"
    mark = secrets.token_hex(8)
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and name != "WANDB_API_KEY"
        },
        **driver_environment(home),
        MARK: mark,
        "LEHR_NODE": str(homes.node_dir(home)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # Ray makes its workers nice by 15, and trainings would inherit that.
        "RAY_worker_niceness": "0",
        # It would end the agent when trainings fill the memory; Ray must not watch their memory.
        "RAY_memory_monitor_refresh_ms": "0",
    }
    command = [
        *(sys.executable, "-P", "-m", "lehr.cluster.ray_daemon", "start", "--head", "--block"),
        *("--node-ip-address", address.rpartition(":")[0]),
        *("--port", address.rpartition(":")[2]),
        *("--num-cpus", "0", "--num-gpus", str(gpus)),
        *("--object-store-memory", str(OBJECT_STORE_BYTES)),
        *("--include-dashboard", "false", "--include-log-monitor", "false"),
        # The default is a fixed port, which a second head on the machine could not use.
        *("--dashboard-agent-listen-port", "0"),
        *("--no-monitor", "--disable-usage-stats"),
        *("--labels", f"lehr.node={node}"),
        # Ray opens its folder to everybody (mode 0777); the parent folder stays closed.
        *("--temp-dir", str(temporary / "r")),
    ]
    logs = homes.logs_dir(home)
    logs.mkdir(parents=True, exist_ok=True)
    log_path = logs / "ray.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=temporary,
            env=environment,
            start_new_session=True,
        )
    head = Head(
        address=address,
        gpus=gpus,
        mark=mark,
        pid=process.pid,
        start_time=procfs.start_time(process.pid) or 0,
        boot_id=procfs.boot_id(),
    )
    # Recorded before it is up, so that `lehr down` finds it in any case.
    procfs.write_json(str(_folder(home) / "head.json"), asdict(head), mode=0o600, durable=True)
    deadline = time.monotonic() + START_S
    while b"Ray runtime started" not in log_path.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            _end(head)
            words = log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise InternalError("Ray did not start: " + " / ".join(words), hint=f"See {log_path}.")
        time.sleep(0.05)
    return head


def _end(head: Head) -> list[int]:
    """End all processes with the head's mark and their descendants, raylets first.

    A raylet ends at once when asked, with its agents and workers. If all were asked together with
    the GCS, it would wait for processes that are gone. The rest has nothing to save, and Ray's own
    parent process would take seconds to notice.

    Ray's agents overwrite their environment with their titles, including the mark. Shims are no
    descendants, because of a double fork.
    """
    marked = head.processes()
    kin = _descendants(marked)
    raylets = {
        pid: started
        for pid in {*marked, *kin}
        if _name(pid) == "raylet" and (started := procfs.start_time(pid)) is not None
    }
    for pid in raylets:
        procfs.send(pid, signal.SIGTERM)
    ended = set(raylets)
    _until_none(lambda: [pid for pid in raylets if _still(pid, raylets[pid])], 5.0, ended)

    def kill_left() -> list[int]:
        found = [*head.processes(), *(pid for pid in kin if _still(pid, kin[pid]))]
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
        _reap(ours)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _descendants(pids: list[int]) -> dict[int, int]:
    """Return children and grandchildren of ``pids``, with start times to identify them."""
    found: dict[int, int] = {}
    waiting = list(pids)
    while waiting:
        for pid in procfs.children(waiting.pop()):
            started = procfs.start_time(pid)
            if started is not None and pid not in found:
                found[pid] = started
                waiting.append(pid)
    return found


def _still(pid: int, started: int) -> bool:
    return procfs.start_time(pid) == started


def _reap(pids: set[int]) -> None:
    """Collect ended children of this process, or they stay as zombies."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _folder(home: Path) -> Path:
    folder = home / "ray"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _forget_sessions(folder: Path) -> None:
    """Remove the sessions of earlier heads except the newest, which may show why it ended."""
    sessions = sorted(path for path in folder.glob("session_2*") if not path.is_symlink())
    for path in sessions[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def _own_folder(path: Path) -> None:
    """Return a folder in the shared temporary one that nobody else can have prepared.

    Raises:
        InternalError: it exists and belongs to another user.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise InternalError(f"{path} belongs to another user", hint="Remove it, or set TMPDIR.")
    path.chmod(0o700)


def _node_ip() -> str:
    """Return the address that Ray will choose for this node, so that both use the same."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only selects a route.
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _starting(home: Path) -> Iterator[None]:
    """Hold a lock: one process at a time starts or stops the head."""
    with (_folder(home) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
