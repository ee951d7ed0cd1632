"""Isolate errors: one run's error must not stop the work for other runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from lehr.errors import StoreUnavailable

log = logging.getLogger(__name__)

TRIES = 5
GIVE_UP_S = 10.0
"""Minimum time between the first failure and giving up, so that a short error ends no run."""


@dataclass(slots=True)
class _Failing:
    since: float
    times: int = 0


class Isolation:
    """Runs the parts of a tick that concern a single run.

    An error is logged once and retried with the next tick. When a part keeps failing, ``give_up``
    is called with the run's id and the reason.
    """

    def __init__(
        self,
        give_up: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._give_up = give_up
        self._clock = clock
        self._failing: dict[tuple[str, str], _Failing] = {}

    def do(self, run_id: str, what: str, act: Callable[[], object]) -> bool:
        """Call ``act``, and return whether it succeeded. ``what`` names the action in messages.

        Raises:
            StoreUnavailable: the store fails for every run.
        """
        key = (run_id, what)
        try:
            act()
        except StoreUnavailable:
            raise
        except Exception as error:
            failing = self._failing.setdefault(key, _Failing(self._clock()))
            failing.times += 1
            if failing.times == 1:
                log.exception("run %s: %s failed", run_id, what)
            # A full disk or memory concerns the whole machine: it is no reason to end one run.
            if not isinstance(error, (OSError, MemoryError)) and self._is_over(failing):
                del self._failing[key]
                self._end(run_id, f"{what} failed {failing.times} times: {error!r}")
            return False
        self._failing.pop(key, None)
        return True

    def tries_again(self, run_id: str, what: str) -> bool:
        """Return whether this part failed last time, and its run is not given up yet."""
        return (run_id, what) in self._failing

    def _is_over(self, failing: _Failing) -> bool:
        return failing.times >= TRIES and self._clock() - failing.since >= GIVE_UP_S

    def _end(self, run_id: str, reason: str) -> None:
        log.error("run %s is given up: %s", run_id, reason)
        try:
            self._give_up(run_id, reason)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("run %s could not be given up", run_id)
