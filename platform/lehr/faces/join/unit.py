"""The systemd unit of a joined machine."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "lehr-node.service"


@dataclass(frozen=True)
class Unit:
    path: Path
    text: str
    enable: tuple[str, ...]
    """The commands that start it, now and at each boot."""


def unit(
    command: Sequence[str],
    *,
    where: Path,
    node: str,
    environment: Mapping[str, str],
    uid: int | None = None,
    config: Path | None = None,
) -> Unit:
    """Return the unit: of the system for root, else of the user.

    Args:
        command: the keeper's command line.
        where: Lehr's home on this machine.
        node: the node's name.
        environment: variables of the shell that trainings need.
        uid: of the user; by default the one who runs this.
        config: the folder of the user's configuration.
    """
    user = os.getuid() if uid is None else uid
    is_root = user == 0
    path = _path(user, config)
    enable: tuple[str, ...] = ("systemctl daemon-reload", f"systemctl enable --now {NAME}")
    if not is_root:
        enable = (
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {NAME}",
            # Without it, the service ends with the last login session.
            f"loginctl enable-linger {pwd.getpwuid(user).pw_name}",
        )
    lines = "\n".join(
        f"Environment={_quoted(f'{name}={value}')}"
        for name, value in {"LEHR_HOME": str(where), "PYTHONSAFEPATH": "1", **environment}.items()
    )
    text = _UNIT.format(
        node=node.replace("%", "%%"),
        environment=lines,
        # systemd expands variables in commands, and only there.
        command=" ".join(_quoted(word.replace("$", "$$")) for word in command),
        target="multi-user.target" if is_root else "default.target",
    )
    return Unit(path, text, enable)


def _path(user: int, config: Path | None) -> Path:
    if user == 0:
        return Path("/etc/systemd/system") / NAME
    base = config or Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return base / "systemd" / "user" / NAME


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
