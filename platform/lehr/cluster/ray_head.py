"""An embedded Ray head: a daemon of its own that outlives the server, and is found again by it.

Never ``ray stop``: that ends every Ray on the machine. What this starts carries a mark of its own
in its environment, and only that is ended.

Ray runs with token authentication and without dashboard, client server and usage reports. Its
GCS and raylet listen on every interface whatever they are told, so the token is what protects
them: it lies in the home, readable by its owner alone.
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
"""Environment variable of everything that belongs to one head."""
START_S = 90.0
OBJECT_STORE_BYTES = 80_000_000
"""Lehr puts nothing into it; Ray would take 30 % of the memory."""


@dataclass(frozen=True)
class Head:
    """A head that was started, as recorded in ``<home>/ray/head.json``."""

    address: str
    gpus: int
    mark: str
    pid: int
    start_time: int
    boot_id: str

    def running(self) -> bool:
        """Whether its first process runs; that one ends when any of Ray's own does."""
        return procfs.is_same(self.pid, self.start_time, self.boot_id)

    def alive(self) -> bool:
        """Whether it runs and can be reached."""
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
    """The file that holds the Ray token; made at first."""
    path = _folder(home) / "token"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def driver_environment(home: Path) -> dict[str, str]:
    """What a process needs in its environment to speak to the home's embedded Ray."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file(home))}


def recorded(home: Path) -> Head | None:
    found = procfs.read_json(str(_folder(home) / "head.json"))
    try:
        return Head(**found)
    except TypeError:
        return None


def ensure(home: Path, gpus: int, *, node: str) -> Head:
    """The home's head: the one that runs, or a new one.

    One that has another number of GPUs, or is only half alive, is ended first; trainings do not
    belong to it and go on.

    Raises:
        InternalError: Ray did not start; the message has its last words.
    """
    with _starting(home):
        head = recorded(home)
        if head is not None:
            if head.gpus == gpus and head.alive():
                return head
            _end(head)
        return _start(home, gpus, node=node)


def stop(home: Path) -> list[int]:
    """End the home's head and all that belongs to it; returns the processes that were ended."""
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
        # Ray's workers are nice by 15, and trainings would inherit that.
        "RAY_worker_niceness": "0",
        # It would end the agent when trainings fill the memory: theirs is not Ray's to watch.
        "RAY_memory_monitor_refresh_ms": "0",
    }
    command = [
        *(sys.executable, "-P", "-m", "lehr.cluster.ray_daemon", "start", "--head", "--block"),
        *("--node-ip-address", address.rpartition(":")[0]),
        *("--port", address.rpartition(":")[2]),
        *("--num-cpus", "0", "--num-gpus", str(gpus)),
        *("--object-store-memory", str(OBJECT_STORE_BYTES)),
        *("--include-dashboard", "false", "--include-log-monitor", "false"),
        # Its default is a fixed port, which a second head on the machine could not have.
        *("--dashboard-agent-listen-port", "0"),
        *("--no-monitor", "--disable-usage-stats"),
        *("--labels", f"lehr.node={node}"),
        # Ray opens its folder to everybody (mode 0777); the one around it stays closed.
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
    # Recorded before it is up: whatever happens next, `lehr down` finds it.
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
    """End everything that carries the head's mark or descends from what does, raylets first.

    A raylet ends at once when it is asked to, and its agents and workers with it; asked together
    with them and the GCS, it waits for those that are gone. What is left then has nothing to
    save, and Ray's own parent process would take seconds to notice.

    Ray's own agents write their titles over their environment, mark and all. Shims are no
    descendants: they were let go of by a double fork.
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
    """Children and children's children of ``pids``, with the start time that tells each apart."""
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
    """Collect those that are this process's own children, or they stay as zombies."""
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
    """Remove what earlier heads left, but for the newest: it may be wanted to see why it ended."""
    sessions = sorted(path for path in folder.glob("session_2*") if not path.is_symlink())
    for path in sessions[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def _own_folder(path: Path) -> None:
    """A folder in the shared temporary one that nobody else can have prepared.

    Raises:
        InternalError: somebody else's file stands there.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise InternalError(f"{path} belongs to another user", hint="Remove it, or set TMPDIR.")
    path.chmod(0o700)


def _node_ip() -> str:
    """The address that Ray will choose as this node's own, so that both mean the same one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing: it only chooses a route.
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
    """One process at a time starts or ends the head."""
    with (_folder(home) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
