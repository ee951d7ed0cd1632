"""Named webhooks of a server, and the messages about runs that they get.

An address is often a secret, since whoever has it can post. So specs name a webhook; its address is
in ``<home>/webhooks.json`` (mode 0600), and no answer of the API contains more than its host.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lehr.errors import NotFound, UserError, did_you_mean
from lehr_trainer.files import write_atomically

if TYPE_CHECKING:
    from lehr.analysis.diagnosis import Alert
    from lehr.specs.run import AlertAction
    from lehr.store.tables import RunRow

_FILE = "webhooks.json"
_DONE = {
    "pause": "It is being paused, with a checkpoint.",
    "rewind": "It is being restarted from a checkpoint before that.",
    "stop": "It is being cancelled.",
}
MOST_CHARACTERS = 1_500  # Of a message's text. Chats cut longer messages, or refuse them.


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
        with self._guard:
            return [Webhook(name, url) for name, url in sorted(self._read().items())]

    def get(self, name: str) -> Webhook:
        """Return the webhook.

        Raises:
            NotFound: there is none of that name.
        """
        found = {webhook.name: webhook for webhook in self.list()}
        if name not in found:
            hint = did_you_mean(name, found) or "Add it: lehr admin webhook add NAME URL"
            raise NotFound(f"There is no webhook {name!r}.", hint=hint)
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


def about_alert(run: RunRow, alert: Alert, action: AlertAction, *, server: str) -> dict[str, Any]:
    """Return the message that a run's curves showed something."""
    done = _DONE.get(action, "")
    text = f"{run.name} ({run.id}): {alert.seen}. {alert.advice}. {done}".strip()
    fields = ("code", "step", "seen", "advice", "sure", "cause", "source")
    seen = {name: getattr(alert, name) for name in fields}
    key = f"{run.id}:alert:{alert.code}"
    if action == "rewind":  # It may come again.
        key += f":{run.attempt}"
    return _message("alert", key, run, text, server) | {"alert": {**seen, "action": action}}


def about_end(run: RunRow, *, server: str) -> dict[str, Any]:
    why = f": {run.reason}" if run.reason and run.state != "completed" else "."
    key = f"{run.id}:end:{run.attempt}"
    return _message("end", key, run, f"{run.name} ({run.id}) is {run.state}{why}", server)


def test_message(name: str) -> dict[str, Any]:
    return {"event": "test", "text": f"Lehr can send messages to the webhook {name}."}


def for_host(message: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the message in the form that the host takes: Discord calls the text ``content``."""
    host = urlsplit(url).hostname or ""
    if host == "discord.com" or host.endswith(".discord.com"):
        return {"content": message["text"]}
    return message


def _message(event: str, key: str, run: RunRow, text: str, server: str) -> dict[str, Any]:
    url = f"{server}/runs/{run.id}"
    short = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
    return {
        "id": key,  # The same in a message that is sent twice.
        "event": event,
        "text": f"{short} {url}",
        "run": {
            "id": run.id,
            "name": run.name,
            "project": run.project,
            "sweep": run.sweep_id,
            "state": run.state,
            "url": url,
        },
    }
