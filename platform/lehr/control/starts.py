"""Decide what follows from the calls that start an attempt: another call, a pause, or its end.

Pure: values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lehr.control.error_patterns import lacks_space
from lehr.errors import LehrError, NotFound

START_TRIES = 5
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Starts:
    """What has become of the start calls of an attempt so far."""

    rejected: int = 0
    """Calls that an agent rejected. A broken bridge is no fault of the node."""
    why: str = ""
    """Why the last one was rejected."""
    node: str | None = None
    """The node that rejected it."""
    since_failed_s: float | None = None
    """Since a call failed last, for whatever reason; None if none has."""
    impossible: Exception | None = None
    """Why no call can be made: the launch spec cannot be written."""


class StartFailure(NamedTuple):
    """The end of an attempt that cannot be started."""

    cause: str
    message: str
    node: str | None = None


def start_failure(starts: Starts) -> StartFailure | None:
    """Return why the attempt is not to be started any more, if so."""
    error = starts.impossible
    if error is not None:
        # The only thing that a launch spec names and that can be gone is a secret.
        cause = "secret_removed" if isinstance(error, NotFound) else "launch_failed"
        return StartFailure(cause, error.message if isinstance(error, LehrError) else str(error))
    if starts.rejected >= START_TRIES and pause_left_s(starts) <= 0.0:
        words = f"its node did not start it in {START_TRIES} tries: {starts.why}"
        cause = "disk_full" if lacks_space(starts.why) else "launch_failed"
        return StartFailure(cause, words, starts.node)
    return None


def pause_left_s(starts: Starts) -> float:
    """Return the seconds until the next call; not positive if it may be made now."""
    if starts.since_failed_s is None:
        return 0.0
    return float(min(LONGEST_PAUSE_S, 2.0**starts.rejected)) - starts.since_failed_s
