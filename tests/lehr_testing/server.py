"""A Lehr server for tests with its own home, port and Ray head; stopped by its recorded processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lehr import Client
from lehr.errors import Conflict
from lehr_testing.paths import TESTING
from lehr_testing.waiting import until

TRAINER = TESTING / "trainers" / "launcher.py"
UNENDED = ["queued", "paused", "starting", "running", "stopping"]


_held: list[int] = []
"""Open lock files, one a port that this process may use."""


def free_port() -> int:
    """Return a port that is free, and stays so: no other process of the tests is given it meanwhile.

    Below those that systems give to outgoing connections: one of these could be taken, too.
    """
    locks = Path(tempfile.gettempdir(), f"lehr-test-ports-{os.getuid()}")
    locks.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(30_000, 32_768), 100):
        lock = os.open(locks / str(port), os.O_CREAT | os.O_RDWR)
        with socket.socket() as probe, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("127.0.0.1", port))
            _held.append(lock)
            return port
        os.close(lock)
    raise AssertionError("of 100 ports from 30000 to 32767, none is free")


class Server:
    """`lehr up` and `lehr down` on a home of its own, as a user would run them."""

    def __init__(self, home: Path, *, gpus: int, trainer: Path | None = TRAINER) -> None:
        """``trainer``: None is the product's own; the other is what each run's ``env`` chooses."""
        self.home = home
        self.gpus = gpus
        self.port = free_port()
        self.up_arguments: tuple[str, ...] = ()
        """More for `lehr up`."""
        self.inside: list[str] = []
        """What runs a command on the machine that the server is on, if that is another."""
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LEHR_")},
            "LEHR_HOME": str(home),
            "OMP_NUM_THREADS": "1",
        }
        if trainer is not None:
            self.environment["LEHR_TRAINER_MODULE"] = str(trainer)

    def cli(
        self, *args: str, check: bool = True, timeout: float = 180, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(  # noqa: PLW1510 - `check` decides below
            [*self.inside, str(Path(sys.executable).parent / "lehr"), *args],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"lehr {' '.join(args)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def up(self) -> Client:
        self.cli("up", "--gpus", str(self.gpus), "--port", str(self.port), *self.up_arguments)
        return self.client()

    def down(self) -> None:
        self.cli("down")

    def client(self) -> Client:
        return Client(
            f"http://127.0.0.1:{self.port}", token=(self.home / "token").read_text().strip()
        )

    @property
    def pid(self) -> int:
        return int(json.loads((self.home / "server.json").read_text())["pid"])

    @property
    def is_running(self) -> bool:
        try:
            return alive(self.pid)
        except FileNotFoundError:
            return False

    def ready(self) -> None:
        """Start it if it is not running, and wait until its GPUs are available."""
        if not self.is_running:
            self.up()
        self.cluster_ready()

    def kill(self) -> None:
        """kill -9 of the API process, and wait until it is gone."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), within_s=20, what=f"the end of server {pid}")

    def cluster_ready(self) -> None:
        client = self.client()
        until(
            lambda: client.cluster().gpus_total == self.gpus,
            within_s=300,
            what=f"a cluster with {self.gpus} GPUs",
        )

    def clear(self) -> None:
        """Cancel what has not ended, so that the next test finds every GPU free."""
        client = self.client()
        for run in client.runs(states=UNENDED):
            view = run.view
            with contextlib.suppress(Conflict):
                if view.sweep_id is not None:
                    client.find_sweep(view.sweep_id).cancel()
                if view.rollout_id is not None:
                    client.find_rollout(view.rollout_id).cancel()
            with contextlib.suppress(Conflict):
                run.cancel()
        until(
            lambda: not client.runs(states=UNENDED),
            within_s=90,
            what="the end of every run that a test left",
        )


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def marked_processes(attempt_id: str) -> dict[int, str]:
    """pid -> command line of every living process that carries an attempt's mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        if f"LEHR_ATTEMPT={attempt_id}\0".encode() in environment and alive(int(folder.name)):
            found[int(folder.name)] = command
    return found


def rank_pids(attempt_id: str) -> list[int]:
    """The attempt's training processes, without torchrun and what they started themselves."""
    return [
        pid
        for pid, command in marked_processes(attempt_id).items()
        if ("trainers/launcher.py" in command or "-m lehr_trainer" in command)
        and "torch.distributed.run" not in command
    ]


def held_locks(pid: int) -> set[str]:
    """The files that the process itself has locked, or inherited locked."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "FLOCK" in Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text():
                found.add(str(descriptor.readlink()))
    return found


def events(home: Path, attempt_id: str) -> list[dict[str, Any]]:
    """The replica's records of one attempt."""
    path = home / "replica" / attempt_id / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
