"""A Lehr server of one's own: its own home, port, Ray head; ended by what it recorded starting."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from lehr import Client
from lehr_testing.paths import TESTING
from lehr_testing.waiting import until

PACED = "trainers/paced.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`lehr up` and `lehr down` on a home of its own, as a user would run them."""

    def __init__(self, home: Path, *, gpus: int, paced: bool = False) -> None:
        """``paced``: trainings take at least 20 ms a step, for tests that disturb them."""
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
        if paced:
            self.environment["LEHR_TRAINER_MODULE"] = str(TESTING / PACED)

    def cli(
        self, *args: str, check: bool = True, timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(  # noqa: PLW1510 - `check` decides below
            [*self.inside, str(Path(sys.executable).parent / "lehr"), *args],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
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

    def kill(self) -> None:
        """kill -9 of the API process, and wait until it is gone."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), within_s=20, what=f"the end of server {pid}")

    def cluster_ready(self) -> None:
        client = self.client()
        until(
            lambda: client.cluster().gpus_total == self.gpus,
            within_s=90,
            what=f"a cluster with {self.gpus} GPUs",
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


def events(home: Path, attempt_id: str) -> list[dict[str, Any]]:
    """The replica's records of one attempt."""
    path = home / "replica" / attempt_id / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
