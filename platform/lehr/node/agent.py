"""The agent: starts and stops attempts on one node. Ray runs it as a detached, named actor.

It keeps no important state in memory: its attempts are in the node's folder, each with a lock that
its shim holds. So the successor of a killed agent finds everything, and two agents on one node
cannot start the same attempt twice. All methods are idempotent by attempt id.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import site
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lehr.base import filesystems, killpoints, procfs
from lehr.node import attempt_dir as secrets_of
from lehr.node import facts, runs_folder, stop
from lehr.node.attempt_dir import AttemptDir
from lehr.node.gpu_inventory import GpuInfo, gpu_problem, node_gpus
from lehr.node.gpu_lock import lock_path
from lehr.node.runs_folder import folder_id
from lehr.node.samples import GpuSampler, HostSampler

SHIM = Path(__file__).with_name("shim.py")
FINALIZE_AGAIN_S = 15.0  # Pause between attempts to finalize an orphan, in case that fails.
SHIM_ANSWERS_S = 20.0
"""Time between the order to kill an attempt and its exit. Then its shim is killed, and another one
ends the attempt.
"""
AWAKE_SHIM_S = 90.0
"""The same for a shim that is awake, or that other one: either may wait a minute for processes that
cannot be killed.
"""
SHIM_SLEEPS_S = 60.0  # A shim that has not woken up for so long does not answer.
_HIDDEN = (
    *("RAY_", "LEHR_", "__RAY", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"),
    "WANDB_API_KEY",  # Only the server mirrors runs; a trainer must not see its key.
)
"""Prefixes of variables of Ray or this process; trainers must not see them."""


_CONSTANT = ("ram_bytes", "disk_bytes")  # What a machine has; no curve.


class NetworkFolder(Exception):
    """The folder of this node is on a network file system."""


class StaleSession(Exception):
    """The start was requested by a server that another server has replaced."""


class Agent:
    """Hands out the node's GPUs by index, as the control plane decided.

    Calls are handled one by one (one actor, one thread). A start is accepted only in the session of
    the last ``hello``, so late messages of a dead server have no effect.
    """

    def __init__(self, node: str, granted_gpus: int, folder: str | None = None) -> None:
        self.node = node
        self.granted = granted_gpus
        self.folder = Path(folder) if folder else node_folder(node)
        self.attempts = self.folder / "attempts"
        self.attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Drafts of starts during which an agent was killed.
        for draft in self.attempts.glob(".*"):
            shutil.rmtree(draft, ignore_errors=True)
        # Left by a container that was drained and started again.
        (self.folder / stop.DRAINING).unlink(missing_ok=True)
        self.look_at_gpus()
        self.host = HostSampler(str(self.folder), publish=self.publish_samples)
        self.session = ""
        self._finalized_at: dict[str, float] = {}
        self._kill_orders: dict[str, float] = {}
        """When each attempt was first ordered to be killed."""
        self._silent: set[str] = set()  # Attempts whose shim was killed because it did not answer.

    def look_at_gpus(self) -> None:
        """List the node's GPUs. A failing driver may recover, so this may be repeated."""
        self.gpus = node_gpus(self.granted)
        self.samples = GpuSampler(self.gpus)

    def hello(self, session: str, server_url: str) -> dict[str, Any]:
        """Begin a session with a new server at this address.

        Raises:
            NetworkFolder: the locks of attempts may be lost: a living training would be killed.
        """
        kind = filesystems.kind_of(self.folder)
        if kind in filesystems.NETWORK:
            raise NetworkFolder(
                f"{self.folder} is on {kind}, a network file system, where locks are unreliable: "
                "set LEHR_NODE to a folder on a local disk, then restart Ray on this node"
            )
        self.session = session
        if len(self.gpus) < self.granted:
            self.look_at_gpus()
        problems = (
            gpu_problem(self.granted, self.gpus),
            facts.torch_problem(self.granted),
            facts.server_problem(server_url),
        )
        procfs.write_json(str(self.folder / "server.json"), {"url": server_url})
        return {
            "node": self.node,
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "cpus": os.cpu_count(),
            "logical": all(gpu.uuid is None for gpu in self.gpus),
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "attempts": self.list(),
            "draining": self.is_draining(),
            "problems": [problem for problem in problems if problem],
            "storage": self.host.storage_problem,
            "facts": facts.facts(),
        }

    def runs_folder(self, runs_dir: str) -> str | None:
        """Return the identity of the folder of runs as this node sees it; None if unknown."""
        folder = runs_folder.runs_dir(runs_dir)
        self.host.watch_disk(str(folder))
        return folder_id(folder)

    def start(self, session: str, launch: dict[str, Any]) -> str:
        """Start an attempt's shim: ``started``, or ``known`` if it was started before.

        Raises:
            StaleSession: another server has called hello since.
            OSError: it could not be recorded, as on a full disk. Nothing of it is left.
        """
        if session != self.session:
            raise StaleSession(f"session {session} is over")
        attempt_id = str(launch["attempt_id"])
        entry = AttemptDir(str(self.attempts / attempt_id))
        if os.path.isdir(entry.path):  # noqa: PTH112 - AttemptDir uses strings
            return "known"
        launch = dict(launch)
        hidden = launch.pop("secrets", {})
        full = {
            **runs_folder.localize(launch),
            "nonce": secrets.token_hex(16),
            "boot_id": procfs.boot_id(),
            # This clock counts while the machine sleeps, and does not jump when the time is set.
            "launched_at_boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
            "gpu_locks": [self.lock(index) for index in launch["gpus"]],
            "threads": launch.get("threads") or self.threads(),
        }
        draft = self.attempts / f".{attempt_id}.{secrets.token_hex(4)}"
        try:
            draft.mkdir(mode=0o700)
            procfs.write_json(str(draft / "launch.json"), full, mode=0o600, durable=True)
            if hidden:
                file = str(draft / secrets_of.SECRETS_FILE)
                procfs.write_json(file, hidden, mode=0o600, durable=True)
            killpoints.reached("agent: before an attempt is recorded")
            draft.rename(entry.path)  # Written atomically, and only once.
        except OSError:
            # The draft holds secrets, and the disk may be full.
            shutil.rmtree(draft, ignore_errors=True)
            if os.path.isdir(entry.path):  # noqa: PTH112 - AttemptDir uses strings
                return "known"
            raise
        killpoints.reached("agent: before a shim is started")
        self._spawn(entry)
        killpoints.reached("agent: after a shim is started")
        return "started"

    def stop(self, attempt_id: str, stop_level: str, reason: str) -> bool:
        """Stop an attempt's processes; return False if there are none."""
        entry = self._entry(attempt_id)
        if entry is None or not entry.held():
            return False
        if stop_level == "kill":
            self._kill_orders.setdefault(entry.path, time.monotonic())
        if entry.request_stop(stop_level, reason):
            killpoints.reached("agent: before a shim is signalled")
            entry.signal_shim(signal.SIGUSR1)
        return True

    def report(self) -> dict[str, Any]:
        return {
            "attempts": self.list(),
            "draining": self.is_draining(),
            "gpus_now": self.samples.newest(),
            "host_now": self.host.newest(),
            "notes": self.notes(),
            "storage": self.host.storage_problem,
        }

    def publish_samples(self, host: dict[str, float]) -> None:
        """Write the newest measurements to a file, which the trainings of this node read."""
        gpus = {str(gpu.pop("index")): gpu for gpu in map(dict, self.samples.newest())}
        host = {name: value for name, value in host.items() if name not in _CONSTANT}
        with contextlib.suppress(OSError):  # The disk may be full.
            procfs.write_json(str(self.folder / "system.json"), {"host": host, "gpus": gpus})

    def notes(self) -> list[str]:
        """Return what is wrong on this node, though runs can start there."""
        entries = [AttemptDir(str(path)) for path in sorted(self.attempts.glob("[!.]*"))]
        silent = [one.attempt_id for one in entries if self._sleeps(one) and one.exit() is None]
        return [
            f"the shim of attempt {name} does not answer, so its GPUs may be held for nothing: "
            f"lehr cancel {name.rpartition('-')[0]}, or lehr pause"
            for name in silent
        ]

    def list(self) -> dict[str, dict[str, Any]]:
        """List every attempt of this node that is not delivered: ``live``, or ``ended`` with its
        exit.

        An attempt with neither shim nor exit gets a shim that finalizes it. One whose folder cannot
        be read is listed as live, because its processes may live.
        """
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.attempts.iterdir()):
            if path.name.startswith(".") or not path.is_dir():
                continue
            try:
                listed = self._listed(path)
            except Exception as error:  # noqa: BLE001 - one attempt must not hide the others
                procfs.log(f"{path.name} cannot be read: {error}")
                listed = {"state": "live", "gpus": [], "exit": None}
            if listed is not None:
                found[path.name] = listed
        return found

    def _listed(self, path: Path) -> dict[str, Any] | None:
        """Return an attempt as it is listed; None if nothing of it is left to do."""
        entry = AttemptDir(str(path))
        held = entry.held()
        if entry.is_done and not held:
            _remove(path)
            return None
        ended = entry.exit()
        if not held and not (path / "shim.json").exists():
            # The agent was killed before the shim registered: it was never started.
            _remove(path)
            return None
        if not held:
            self._finalize_orphan(entry)
        elif ended is None and self._is_overdue(entry):
            self._kill_shim(entry)
        launch = entry.launch() or {}
        return {
            "state": "live" if ended is None else "ended",
            "gpus": launch.get("gpus", []),
            "exit": ended,
        }

    # --- internals ---------------------------------------------------------------------------

    def is_draining(self) -> bool:
        return (self.folder / stop.DRAINING).exists()

    def lock(self, index: int) -> str:
        gpu = next((gpu for gpu in self.gpus if gpu.index == index), None)
        return gpu_lock(gpu, index, self.folder)

    def threads(self) -> int:
        """Return the CPU threads per rank when the spec names none: an even share, with a
        maximum.
        """
        return max(1, min(16, (os.cpu_count() or 1) // max(1, len(self.gpus))))

    def _entry(self, attempt_id: str) -> AttemptDir | None:
        path = self.attempts / attempt_id
        return AttemptDir(str(path)) if path.is_dir() and path.parent == self.attempts else None

    def _spawn(self, entry: AttemptDir, *extra: str) -> None:
        """Run a shim; return when it has registered and gone into the background."""
        with open(entry.file("shim.log"), "ab") as log:  # noqa: PTH123 - AttemptDir uses strings
            subprocess.run(
                [sys.executable, "-I", "-S", str(SHIM), entry.path, *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment() | killpoints.environment(),
                timeout=60,
                check=False,
            )

    def _finalize_orphan(self, entry: AttemptDir) -> None:
        now = time.monotonic()
        if now - self._finalized_at.get(entry.path, -FINALIZE_AGAIN_S) >= FINALIZE_AGAIN_S:
            self._finalized_at[entry.path] = now
            # What kept its shim from answering may lie in the attempt's directory.
            unread = ["--unread"] if entry.path in self._silent else []
            self._spawn(entry, "--finalize-orphan", *unread)

    def _is_overdue(self, entry: AttemptDir) -> bool:
        """Return whether an attempt was to be killed, and its shim has not done so in time."""
        ordered = self._kill_orders.get(entry.path)
        if ordered is None:
            return False
        awake = entry.path in self._silent or not _slept(entry, SHIM_ANSWERS_S)
        return time.monotonic() - ordered > (AWAKE_SHIM_S if awake else SHIM_ANSWERS_S)

    def _kill_shim(self, entry: AttemptDir) -> None:
        """Kill a shim that does not answer: its attempt is an orphan then, and is finalized."""
        procfs.log(f"{entry.attempt_id}: its shim does not answer, and is killed")
        self._silent.add(entry.path)
        self._kill_orders[entry.path] = time.monotonic()
        entry.signal_shim(signal.SIGKILL)

    def _sleeps(self, entry: AttemptDir) -> bool:
        """Return whether a shim has not woken up for long."""
        return (Path(entry.path) / "shim.json").exists() and _slept(entry, SHIM_SLEEPS_S)


def _slept(entry: AttemptDir, seconds: float) -> bool:
    try:
        return time.time() - Path(entry.file("alive")).stat().st_mtime > seconds
    except OSError:
        return True


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables of Ray and Lehr.

    Python then also ignores packages in the user's home, which may change at any time, unless
    Lehr itself or torch is installed there.
    """
    found = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return found if _is_in_user_site() else found | {"PYTHONNOUSERSITE": "1"}


def _is_in_user_site() -> bool:
    torch = importlib.util.find_spec("torch")
    folder = os.path.join(os.path.realpath(site.getusersitepackages()), "")  # noqa: PTH118 - with /
    paths = [__file__, (torch.origin if torch is not None else None) or ""]
    return any(os.path.realpath(path).startswith(folder) for path in paths)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def node_folder(node: str) -> Path:
    """Return the folder of this node: ``LEHR_NODE``, else in the home, else a temporary folder."""
    base = os.environ.get("LEHR_NODE")
    where = Path(base) if base else Path("~/.lehr/node").expanduser()
    return where / node


def gpu_lock(gpu: GpuInfo | None, index: int, folder: Path) -> str:
    """Return the lock of a GPU. A real GPU's lock is shared by all servers of the machine."""
    if gpu is None or gpu.uuid is None:
        return lock_path(str(folder / "gpus"), str(index))
    shared = Path("/var/tmp/lehr-gpus")  # noqa: S108 - files in it are opened without following links
    try:
        shared.mkdir(mode=0o1777)
        shared.chmod(0o1777)  # Ignore the umask: every user of the machine must be able to open it.
    except FileExistsError:
        pass
    return lock_path(str(shared), gpu.uuid)
