"""Processes that a training leaves behind, and how they are found. Standard library only.

A process of an attempt has the attempt's mark in its environment. One that has cleared its
environment is found as an orphan, since the shim adopts those. If the shim itself is killed, its
orphans belong to the system's init. Therefore it records all descendants of the training from time
to time, and the shim that finalizes the attempt finds them by this record.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable

from lehr.base import procfs
from lehr.node import subprocesses
from lehr.node.attempt_dir import AttemptDir

RECORD = "processes.json"
"""File of the attempt's folder: pid and start time of each descendant."""
EACH_S = 10.0
"""Pause between records. Each one reads the parents of all processes of the machine."""
_LIMIT_S = 60.0
_LONGEST_PID = 10


class Leftovers:
    """The processes of an attempt, without its shim and what the shim itself needs."""

    def __init__(self, entry: AttemptDir, nonce: str) -> None:
        self._file = entry.file(RECORD)
        self._nonce = nonce
        self._of_killed_shim = _recorded(procfs.read_json(self._file))
        self._recorded: dict[int, int] = {}
        self._due = 0.0

    def record(self, training: int) -> None:
        """Record all descendants of ``training`` and all adopted orphans, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EACH_S
        found = descendants([training, *subprocesses.orphans()])
        if found != self._recorded:
            with contextlib.suppress(OSError):  # The disk may be full.
                content = {"boot_id": procfs.boot_id(), "processes": found}
                procfs.write_json(self._file, content, mode=0o600)
                self._recorded = found

    def kill(self, spared: set[int], pause: Callable[[], None]) -> list[int]:
        """Kill all of them except the spared ones; return those that survive.

        ``pause`` waits for a short time.
        """
        deadline = time.monotonic() + _LIMIT_S
        lost = self._stop_those_of_a_killed_shim()
        while True:
            marked = procfs.marked(procfs.MARK, self._nonce)
            left = {*marked, *subprocesses.orphans(), *_living(lost)} - spared
            if not left or time.monotonic() > deadline:
                subprocesses.reap_orphans()
                return sorted(left)
            for pid in left:
                procfs.send(pid, signal.SIGKILL)
            pause()

    def _stop_those_of_a_killed_shim(self) -> dict[int, int]:
        """Stop all that a killed shim has recorded, so that they start no other; return them.

        Descendants are listed before their parents are killed: without these nobody finds them.
        """
        if not self._of_killed_shim:
            return {}
        roots = _living(self._of_killed_shim) + procfs.marked(procfs.MARK, self._nonce)
        stopped: set[int] = set()
        while new := (found := descendants(roots)).keys() - stopped:
            for pid in new:
                procfs.send(pid, signal.SIGSTOP)
            stopped |= new
        return found


def _recorded(content: object) -> dict[int, int]:
    """Return the processes of a record of this boot; the training may have written anything."""
    if not isinstance(content, dict) or content.get("boot_id") != procfs.boot_id():
        return {}
    processes = content.get("processes")
    if not isinstance(processes, dict):
        return {}
    return {
        int(pid): started
        for pid, started in processes.items()
        if len(pid) <= _LONGEST_PID and pid.isdecimal() and isinstance(started, int)
    }


def descendants(roots: Iterable[int]) -> dict[int, int]:
    """Return these processes and all below them that live, each with its start time."""
    below: dict[int, list[int]] = {}
    for pid, parent in procfs.parents().items():
        below.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        started = procfs.start_time(pid)
        if pid not in found and started is not None:
            found[pid] = started
            waiting += below.get(pid, [])
    return found


def _living(processes: dict[int, int]) -> list[int]:
    return [pid for pid, started in processes.items() if procfs.start_time(pid) == started]
