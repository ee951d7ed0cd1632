"""Logins of browsers: each has a number and an end, and those that were ended early are kept."""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from lehr.errors import HomeUnusable, StoreUnavailable
from lehr_trainer.files import write_atomically

LIFETIME_S = 30 * 86_400
MOST_ENDED = 10_000
"""Logins that are remembered as ended. Beyond them, those that would end first are forgotten."""
_FILE = "ended-logins.json"


@dataclass(frozen=True)
class Login:
    number: str
    until: int
    """When it ends by itself, in seconds since the epoch."""

    @classmethod
    def new(cls, now: float) -> Login:
        return cls(secrets.token_hex(16), int(now) + LIFETIME_S)


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
