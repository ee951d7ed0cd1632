"""Isolate errors: an error of one run, sweep or rollout must not stop the work for the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from structlog.contextvars import bound_contextvars

from lehr.base import own_logs
from lehr.control.step import Subject
from lehr.errors import StoreUnavailable

log = logging.getLogger(__name__)

TRIES = 5
GIVE_UP_S = 10.0
"""Minimum time between the first failure and giving up, so that a short error ends no run."""


_CAN_END = frozenset({"run", "sweep", "rollout"})
"""The kinds of subjects that a lasting fault ends."""
_NAMELESS = {"queue": "the queue", "node": "the check of nodes"}
"""Parts of a tick that concern no single subject."""


@dataclass(slots=True)
class _Failing:
    since: float
    times: int = 0
    lasts: bool = False  # It was logged that it lasts.


class Noted:
    """Ids of what is to be read: added from any thread, taken by the dispatcher's."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ids: set[str] = set()

    def add(self, ids: Iterable[str]) -> None:
        with self._guard:
            self._ids.update(ids)

    def seen(self) -> set[str]:
        """Return all of them; they stay noted."""
        with self._guard:
            return set(self._ids)

    def take(self) -> set[str]:
        with self._guard:
            taken, self._ids = self._ids, set()
        return taken

    @contextmanager
    def taken(self) -> Iterator[set[str]]:
        """Take all of them; they are noted again if the block raises."""
        taken = self.take()
        try:
            yield taken
        except BaseException:
            self.add(taken)
            raise


class Isolation:
    """Runs the parts of a tick that concern a single subject: a run, a sweep or a rollout.

    An error is logged once and retried with the next tick. When a part keeps failing, ``give_up``
    is called with the subject and the reason. A fault of the queue or of a node ends nothing.
    """

    def __init__(
        self, give_up: Callable[[Subject, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._give_up = give_up
        self._clock = clock
        self._failing: dict[tuple[Subject, str], _Failing] = {}

    def do(self, subject: Subject, what: str, act: Callable[[], object]) -> bool:
        """Call ``act``, and return whether it succeeded. ``what`` names the action in messages.

        Raises:
            StoreUnavailable: the store fails for every subject.
        """
        try:
            with bound_contextvars(**own_logs.of(*subject)):
                act()
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - ``failed`` logs it
            self.failed(subject, what, error)
            return False
        self.succeeded(subject, what)
        return True

    def succeeded(self, subject: Subject, what: str) -> None:
        self._failing.pop((subject, what), None)

    def failed(self, subject: Subject, what: str, error: Exception) -> None:
        """Count a failure: log the first of a series, and give up when it lasts."""
        key = (subject, what)
        failing = self._failing.setdefault(key, _Failing(self._clock()))
        failing.times += 1
        if failing.times == 1:
            fields = own_logs.of(*subject)
            log.error("%s: %s failed", _name(subject), what, exc_info=error, extra=fields)
        # A full disk or memory concerns the whole machine: it is no reason to end one run.
        if isinstance(error, (OSError, MemoryError)) or failing.times < TRIES:
            return
        if self._clock() - failing.since < GIVE_UP_S:
            return
        if subject.kind in _CAN_END:
            del self._failing[key]
            self._end(subject, f"{what} failed {failing.times} times: {error!r}")
        elif not failing.lasts:
            failing.lasts = True
            words = "%s: %s has failed %d times, and is tried again with each tick: %r"
            log.error(words, _name(subject), what, failing.times, error)

    def forget_others(self, what: Collection[str], failed: Collection[Subject]) -> None:
        """Forget the failures of these parts of every subject but those that ``failed`` now."""
        self._failing = {
            (subject, part): failing
            for (subject, part), failing in self._failing.items()
            if part not in what or subject in failed
        }

    @property
    def failing(self) -> bool:
        return bool(self._failing)

    def tries_again(self, subject: Subject, what: str) -> bool:
        return (subject, what) in self._failing

    def _end(self, subject: Subject, reason: str) -> None:
        fields = own_logs.of(*subject)
        log.error("%s is given up: %s", _name(subject), reason, extra=fields)
        try:
            self._give_up(subject, reason)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("%s could not be given up", _name(subject), extra=fields)


def _name(subject: Subject) -> str:
    return f"{subject.kind} {subject.id}" if subject.id else _NAMELESS[subject.kind]
