"""The messages about runs that webhooks get. The address of a webhook is a secret of the server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from lehr.analysis.diagnosis import Alert
from lehr.specs.run import AlertAction
from lehr.store.tables import RunRow

_DONE = {
    "pause": "It is being paused, with a checkpoint.",
    "rewind": "It is being restarted from a checkpoint before that.",
    "stop": "It is being cancelled.",
}
MOST_CHARACTERS = 1_500  # Of a message's text. Chats cut longer messages, or refuse them.


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
