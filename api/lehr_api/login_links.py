"""Login links: each logs a browser in once, within minutes, so that no token is in an address."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable

from lehr.errors import Unauthorized
from lehr_api.auth import Person

LIFETIME_S = 300.0
MOST_EACH = 20
"""Links of one person. A new one ends that person's oldest, and nobody else's."""


class LoginLinks:
    """The codes that were not used yet. A restart of the server ends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._open: dict[str, tuple[Person, float]] = {}

    def make(self, person: Person) -> str:
        """Return a code that logs in as this person."""
        code = secrets.token_urlsafe(32)
        with self._guard:
            now = self._clock()
            self._open = {key: one for key, one in self._open.items() if one[1] > now}
            own = [key for key, (owner, _) in self._open.items() if owner == person]
            for key in own[: max(0, len(own) + 1 - MOST_EACH)]:
                del self._open[key]
            self._open[_digest(code)] = (person, now + LIFETIME_S)
        return code

    def take(self, code: str) -> Person:
        """Return whom the code logs in, and end it.

        Raises:
            Unauthorized: it was used, has expired, or is not of this server.
        """
        with self._guard:
            person, until = self._open.pop(_digest(code), (None, 0.0))
            if person is None or until <= self._clock():
                raise Unauthorized(
                    "this login link was used or has expired.",
                    hint="lehr admin login-link prints a new one.",
                )
            return person


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogateescape")).hexdigest()
