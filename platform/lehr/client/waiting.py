"""Waiting for a run, sweep or rollout: pauses, restarts of the server, a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from lehr.client.transport import TIMEOUT_S
from lehr.errors import ServerUnavailable

V = TypeVar("V")

_PAUSE_S = 1.0


class Waitable(Protocol):
    """A run, a sweep, a rollout."""

    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    def refresh(self) -> object: ...


def until_ended(
    handle: Waitable,
    waiting: Wait,
    shown: AbstractContextManager[Callable[[V], None]],
    view: Callable[[], V],
) -> None:
    """Read it repeatedly until it has ended, and show each view.

    Raises:
        TimeoutError: it had not ended in time.
    """
    with shown as show:
        while True:
            with waiting.patience():
                handle.refresh()
            show(view())
            if handle.ended:
                return
            waiting.pause(handle.state)


class Wait:
    def __init__(self, what: str, timeout_s: float | None) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._answered_at: float | None = None

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Tolerate a server that does not answer for a while, if it has answered before."""
        try:
            yield
        except ServerUnavailable:
            if self._answered_at is None or time.monotonic() - self._answered_at > TIMEOUT_S:
                raise
        else:
            self._answered_at = time.monotonic()

    def pause(self, state: str) -> None:
        """Sleep until the next read.

        Raises:
            TimeoutError: the deadline has passed.
        """
        left = _PAUSE_S if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{self._what} was {state} after {self._timeout_s:g} s")
        time.sleep(min(_PAUSE_S, left))
