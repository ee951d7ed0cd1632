"""The keeper as a process of this machine: start it, find it, stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lehr.base import home as homes
from lehr.base import procfs
from lehr.cluster import ray_process
from lehr.errors import LehrError
from lehr.faces.join import record as records

STOP_S = 30.0
_LINES = 5


def command(where: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "lehr.faces.join.keeper", str(where)]


def keeper_pid(where: Path) -> int | None:
    """Return the pid of the living keeper."""
    found = procfs.read_json(str(where / "join" / "keeper.json"))
    try:
        alive = procfs.is_same(found["pid"], found["start_time"], found["boot_id"])
        return int(found["pid"]) if alive else None
    except (KeyError, TypeError):
        return None


def start(where: Path) -> None:
    """Start the keeper in the background; it outlives this terminal."""
    with log_path(where).open("ab") as log:
        subprocess.Popen(
            command(where),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=records.folder(where),
            start_new_session=True,
        )


def run_in_foreground(where: Path) -> NoReturn:
    """Replace this process by the keeper. Does not return."""
    stop(where)
    words = command(where)
    sys.stdout.flush()
    os.execv(words[0], words)  # noqa: S606 - an argv list, no shell


def log_path(where: Path) -> Path:
    path = homes.logs_dir(where) / "keeper.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def wait_until_gone(in_cluster: Callable[[], bool], within_s: float) -> None:
    """Wait until the server knows that the Ray node has ended, at most ``within_s``.

    Else what it still has of the old one looks as if the new one had joined.
    """
    deadline = time.monotonic() + within_s
    while in_cluster() and time.monotonic() < deadline:
        time.sleep(0.5)


def wait_until_joined(where: Path, in_cluster: Callable[[], bool], within_s: float) -> None:
    """Wait until the server has the node.

    Raises:
        LehrError: it did not join in time; with the last lines of the keeper's log.
    """
    deadline = time.monotonic() + within_s
    while not in_cluster():
        if time.monotonic() > deadline:
            lines = log_path(where).read_text(errors="replace").strip().splitlines()[-_LINES:]
            raise LehrError(
                f"the node did not join within {within_s:.0f} s; it keeps trying.",
                hint="\n".join(
                    [f"The end of {log_path(where)}:", *(f"    {one}" for one in lines)]
                ),
            )
        time.sleep(0.5)


def stop(where: Path) -> bool:
    """End the keeper and its Ray node. Return whether one of them ran."""
    pid = keeper_pid(where)
    if pid is not None:
        started = procfs.start_time(pid)
        procfs.send(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while procfs.start_time(pid) == started and time.monotonic() < deadline:
            ray_process.reap(pid)
            time.sleep(0.05)
        if procfs.start_time(pid) == started:
            procfs.send(pid, signal.SIGKILL)
    process = records.read_ray(where)
    running = process is not None and process.running()
    if process is not None and running:
        ray_process.end(process)
    if keeper_pid(where) is None:  # Else another one has taken over, e.g. that of a systemd unit.
        (where / "join" / "keeper.json").unlink(missing_ok=True)
    return pid is not None or running


def retire(where: Path) -> None:
    """End the keeper for good: forget how the machine joined, so that no other one takes over."""
    records.forget_how(where)
    stop(where)
    records.forget(where)


def environment_of_shell() -> dict[str, str]:
    """Return the variables of this shell that the service must have, too."""
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
