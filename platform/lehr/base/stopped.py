"""How a long read learns that nobody waits for its result any more."""

from __future__ import annotations

from collections.abc import Callable

Stopped = Callable[[], bool]  # Asked between pieces; true: stop reading.


def never() -> bool:
    """Return false: the result is waited for to the end."""
    return False
