"""Types of the functions through which work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

LogFn = Callable[[str], None]
"""Print one line."""

Notify = Callable[[str, str, float | None], None]
"""Report progress: phase, message, and the share done where it is known."""
