"""Named webhooks of a server: addresses that get messages.

An address is often a secret, since whoever has it can post. So specs name a webhook; its address is
in ``<home>/webhooks.json`` (mode 0600), and no answer of the API contains more than its host.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lehr.errors import NotFound, UserError, nearest
from lehr_trainer.files import write_atomically

_FILE = "webhooks.json"


@dataclass(frozen=True)
class Webhook:
    name: str
    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


class Webhooks:
    """The webhooks of one home. May be used from any thread of its server."""

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE
        self._guard = threading.Lock()

    def list(self) -> list[Webhook]:
        """Return them by name."""
        with self._guard:
            return [Webhook(name, url) for name, url in sorted(self._read().items())]

    def get(self, name: str) -> Webhook:
        """Return the webhook.

        Raises:
            NotFound: there is none of that name.
        """
        found = {webhook.name: webhook for webhook in self.list()}
        if name not in found:
            close = nearest(name, found)
            raise NotFound(
                f"There is no webhook {name!r}.",
                hint=f"Did you mean {close}?"
                if close
                else "Add it: lehr admin webhook add NAME URL",
            )
        return found[name]

    def put(self, name: str, url: str) -> Webhook:
        """Add or replace one.

        Raises:
            UserError: the address is not one of http or https with a host.
        """
        parts = urlsplit(url)
        try:
            valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:  # The port is no number.
            valid = False
        if not valid or parts.username is not None or not url.isascii() or not url.isprintable():
            raise UserError(
                "That is not the address of a webhook.",
                hint="It begins with https:// or http://, has a host, and no user or password.",
            )
        with self._guard:
            self._write({**self._read(), name: url})
        return Webhook(name, url)

    def delete(self, name: str) -> Webhook:
        """Remove one, and return it.

        Raises:
            NotFound: there is none of that name.
        """
        webhook = self.get(name)
        with self._guard:
            self._write({key: url for key, url in self._read().items() if key != name})
        return webhook

    def _read(self) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        return found

    def _write(self, urls: dict[str, str]) -> None:
        write_atomically(self._path, json.dumps(urls, indent=1), mode=0o600)
