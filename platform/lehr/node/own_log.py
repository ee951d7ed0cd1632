"""Lines of a process's own log. Standard library only."""

import contextlib
import sys


def write(line: str) -> None:
    """Write a line to stderr, or nothing if the disk of the log refuses it.

    A log on a full disk must not end the work that it is about.
    """
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
