"""Find ports of Lehr's processes that other machines can reach, from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_LISTEN = "0A"
_NAMES = (
    ("lehr_api", "Lehr's server"),
    ("lehr_trainer", "a trainer"),
    ("lehr.cluster", "Lehr's bridge"),
    ("ray", "Ray"),
    ("gcs_server", "Ray"),
)
_LOOPBACK = ("0100007F", "00000000000000000000000001000000")


def reachable_ports(where: Path) -> list[tuple[int, str]]:
    """Return (port, program) of each socket of this home's processes open beyond loopback."""
    inodes = _listening_inodes()
    found: dict[int, str] = {}
    for process in _processes_of(where):
        name = _name(process)
        for inode in _socket_inodes(process):
            if inode in inodes:
                found.setdefault(inodes[inode], name)
    return sorted(found.items())


def _listening_inodes() -> dict[str, int]:
    """Map socket inodes to ports, for sockets that listen on an address other than loopback."""
    found: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN and address not in _LOOPBACK:
                found[fields[9]] = int(port, 16)
    return found


def _processes_of(where: Path) -> list[Path]:
    """Return the processes with this home in their environment, as in all that Lehr starts."""
    mark = f"LEHR_HOME={where}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment:
                found.append(folder)
    return found


def _socket_inodes(process: Path) -> list[str]:
    found = []
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return []
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(target[8:-1])
    return found


def _name(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    text = b" ".join(words).decode(errors="replace")
    return next((name for word, name in _NAMES if word in text), Path(text.split(" ")[0]).name)
