"""Processes by pid and start time, so that a reused pid is never mistaken."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lehr.home import boot_id


@dataclass(frozen=True)
class ProcessId:
    pid: int
    started: str
    """Start time in the kernel's units; only compared for equality."""


def identify(pid: int) -> ProcessId | None:
    """Return the living process with that pid; None if there is none or it is a zombie."""
    if pid <= 0:
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _identify_by_ps(pid)
    except (OSError, UnicodeDecodeError):
        return None
    fields = text.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return None
    return ProcessId(pid, f"{boot_id()[:8]}:{fields[19]}")


def processor_s(pid: int) -> float:
    """Return the processor time that the process has used; 0 if that is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def stop(process: ProcessId, *, timeout_s: float) -> bool:
    """Send SIGTERM, then SIGKILL after ``timeout_s``. Return whether it was killed.

    Raises:
        PermissionError: the process belongs to another user.
    """
    if not _signal(process, signal.SIGTERM) or wait_gone(process, timeout_s):
        return False
    _signal(process, signal.SIGKILL)
    wait_gone(process, 10.0)
    return True


def wait_gone(process: ProcessId, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _signal(process: ProcessId, number: int) -> bool:
    if not alive(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _identify_by_ps(pid: int) -> ProcessId | None:
    """Identify a process without /proc, as on macOS."""
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = done.stdout.strip().partition(" ")
    if done.returncode != 0 or state.startswith("Z"):
        return None
    return ProcessId(pid, " ".join(started.split()))
