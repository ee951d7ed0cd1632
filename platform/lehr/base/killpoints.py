"""Named points at which a fault test ends a process, as SIGKILL at that moment would.

A point costs one call of an empty function unless ``LEHR_KILL_POINTS`` names a file when the
process starts. A test then *arms* a point by writing ``<name>`` or ``<name> x <count>`` into that
file. The process that reaches the point for the count-th time since then ends there. The file is
renamed to ``<file>.fired`` first, so one arming kills only one process. Standard library only,
since shims and shippers have points too.
"""

import os
import signal
from collections.abc import Callable

VARIABLE = "LEHR_KILL_POINTS"
_file = os.environ.get(VARIABLE)
_armed = (0, 0)  # Modification time of the file as last read, and how often its point was reached.


def environment() -> dict[str, str]:
    """Return the variables that pass the points on to a process with its own environment."""
    return {VARIABLE: _file} if _file else {}


def _nothing(name: str) -> None:
    """Do nothing: no test has named a file."""


def _die_if_armed(name: str) -> None:
    global _armed  # noqa: PLW0603 - one count a process
    assert _file is not None
    try:
        with open(_file, encoding="utf-8") as file:
            text, written = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return
    point, _, count = text.strip().partition(" x ")
    if point != name:
        return
    times = _armed[1] + 1 if _armed[0] == written else 1
    _armed = (written, times)
    if times < int(count or 1):
        return
    try:
        os.rename(_file, _file + ".fired")
    except OSError:
        return  # Another process was first.
    os.kill(os.getpid(), signal.SIGKILL)


reached: Callable[[str], None] = _die_if_armed if _file else _nothing
"""Call ``reached("agent: before a shim is started")`` where a test may end this process."""
