"""The keeper as a process of this machine: start it, find it, stop it; its systemd unit."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lehr.base import home as homes
from lehr.base import procfs
from lehr.cluster import ray_process
from lehr.errors import LehrError
from lehr.faces.join import record as records

STOP_S = 30.0
UNIT = "lehr-node.service"
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
        procfs.end(pid, STOP_S)
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


@dataclass(frozen=True)
class Unit:
    """The systemd unit of a joined machine."""

    path: Path
    text: str
    enable: tuple[str, ...]
    """The commands that start it, now and at each boot."""


def unit(where: Path, node: str) -> Unit:
    """Return the unit: of the system for root, else of the user.

    Its service gets the variables of this shell that trainings need.
    """
    user = os.getuid()
    is_root = user == 0
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    folder = Path("/etc/systemd/system") if is_root else config / "systemd" / "user"
    enable: tuple[str, ...] = ("systemctl daemon-reload", f"systemctl enable --now {UNIT}")
    if not is_root:
        enable = (
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {UNIT}",
            # Without it, the service ends with the last login session.
            f"loginctl enable-linger {pwd.getpwuid(user).pw_name}",
        )
    variables = {"LEHR_HOME": str(where), "PYTHONSAFEPATH": "1"}
    variables |= {n: os.environ[n] for n in ("PATH", "LD_LIBRARY_PATH") if n in os.environ}
    text = _UNIT.format(
        node=node.replace("%", "%%"),
        environment="\n".join(f"Environment={_quoted(f'{n}={v}')}" for n, v in variables.items()),
        # systemd expands variables in commands, and only there.
        command=" ".join(_quoted(word.replace("$", "$$")) for word in command(where)),
        target="multi-user.target" if is_root else "default.target",
    )
    return Unit(folder / UNIT, text, enable)


def _quoted(word: str) -> str:
    """Return a word as systemd reads it: quoted, without its specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


_UNIT = """\
# Written by lehr node join --systemd. Trainings continue when it is stopped or restarted: they are
# not the keeper's children, and KillMode=process ends the keeper alone.
[Unit]
Description=Lehr node {node}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
{environment}
ExecStart={command}
KillMode=process
TimeoutStopSec=60
Restart=always
RestartSec=5
# The machine has left its cluster.
RestartPreventExitStatus=2
# A training that the kernel ends for its memory must not take the others along.
OOMPolicy=continue
# NCCL registers memory for InfiniBand.
LimitMEMLOCK=infinity
LimitNOFILE=65536
TasksMax=infinity
NoNewPrivileges=true

[Install]
WantedBy={target}
"""
