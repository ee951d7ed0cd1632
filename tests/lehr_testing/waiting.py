"""Wait for a condition, with a deadline and a clear error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, within_s: float, what: str, every_s: float = 0.1) -> T:
    """Return the first truthy value of ``condition``, or say ``what`` did not come in time."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s for {what}; last seen: {value!r}")
        time.sleep(every_s)
