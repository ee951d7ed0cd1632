"""People and their logins: links that log a browser in, and logins that were ended early."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lehr.base import access
from lehr.base.access import Role
from lehr.errors import HomeUnusable, StoreUnavailable, Unauthorized
from lehr_trainer.files import write_atomically

LIFETIME_S = 30 * 86_400
MOST_ENDED = 10_000
"""Logins that are remembered as ended. Beyond them, those that would end first are forgotten."""
LINK_LIFETIME_S = 300.0
MOST_LINKS_EACH = 20
"""Login links of one person. A new one ends that person's oldest, and nobody else's."""
_FILE = "ended-logins.json"


@dataclass(frozen=True)
class Login:
    number: str
    until: int
    """When it ends by itself, in seconds since the epoch."""

    @classmethod
    def new(cls, now: float) -> Login:
        return cls(secrets.token_hex(16), int(now) + LIFETIME_S)


@dataclass(frozen=True)
class Person:
    """Whom a request comes from: the holder of the home's token, or of a named one."""

    name: str
    role: Role
    sha256: str | None = None
    """The digest of a named token; None for the home's own token."""
    login: Login | None = field(default=None, compare=False)
    """The login of the browser; None if the request has the token itself."""


OWNER = Person(access.OWNER, Role.ADMIN)


class EndedLogins:
    """The logins that a logout ended, in a file of the home until they would end by themselves.

    Thread-safe.

    Raises:
        HomeUnusable: the file cannot be read.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE
        self._guard = threading.Lock()
        try:
            read = json.loads(self._path.read_bytes()) if self._path.exists() else {}
            self._until = {str(number): int(until) for number, until in read.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise HomeUnusable(
                f"{self._path} cannot be read: {error}.",
                hint="Remove it. Then logins of the last 30 days that were ended are valid again.",
            ) from error

    def valid(self, login: Login) -> bool:
        return login.until > time.time() and login.number not in self._until

    def end(self, login: Login) -> None:
        """End a login now; it stays ended when the server starts again.

        Raises:
            StoreUnavailable: it is ended until then only, since it could not be recorded.
        """
        with self._guard:
            now = time.time()
            kept = {number: until for number, until in self._until.items() if until > now}
            kept[login.number] = login.until
            newest = sorted(kept.items(), key=lambda entry: entry[1])[-MOST_ENDED:]
            self._until = dict(newest)
            try:
                write_atomically(self._path, json.dumps(self._until), mode=0o600)
            except OSError as error:
                raise StoreUnavailable(
                    f"the end of the login cannot be recorded in {self._path}: {error.strerror}.",
                    hint="Log out again when the server has space.",
                ) from error


class LoginLinks:
    """Codes that log a browser in once, within minutes, so that no token is in an address.

    A restart of the server ends them.
    """

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
            for key in own[: max(0, len(own) + 1 - MOST_LINKS_EACH)]:
                del self._open[key]
            self._open[_digest(code)] = (person, now + LINK_LIFETIME_S)
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
