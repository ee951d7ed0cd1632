"""Why a server did not start, by what it wrote."""

from __future__ import annotations

import json
from itertools import dropwhile
from pathlib import Path

from lehr.errors import LehrError

_LINES = 12
_FRAME = '  File "'
_TRACEBACK = "Traceback (most recent call last):"
_CHATTER = {"debug", "info"}
"""Levels of lines that explain no failure."""


def did_not_start(why: str, log: Path, begin: int) -> LehrError:
    """Return the error of a server that did not start.

    Args:
        why: how it failed, as seen from outside.
        log: the file with its output.
        begin: where its output begins in the file.
    """
    with log.open("rb") as file:
        file.seek(begin)
        lines = told(file.read().decode("utf-8", "replace"))
    tail = "\n".join(f"    {line}" for line in lines)
    hint = f"The end of {log}:\n{tail}" if tail else f"Its log: {log}"
    return LehrError(f"the server did not start: {why}.", hint=hint)


def told(output: str) -> list[str]:
    """Return the last lines that explain a failure; if there are none, the last of all lines."""
    explaining: list[str] = []
    others: list[str] = []
    in_traceback = False
    for line in output.strip().splitlines():
        in_traceback = line == _TRACEBACK or (in_traceback and line.startswith((" ", "|")))
        if in_traceback or not line.strip():
            continue
        event = _event(line)
        is_chatter = event is not None and event.get("level") in _CHATTER
        text = line if event is None else _readable(str(event["event"]))
        (others if is_chatter else explaining).append(text)
    return (explaining or others)[-_LINES:]


def _event(line: str) -> dict[str, object] | None:
    """Return the event that a line of the server's log is; None for another line."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _readable(text: str) -> str:
    """Shorten a message: of a traceback, its error."""
    lines = text.strip().splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith(_FRAME)]
    if not frames:
        return lines[-1] if lines else ""
    # An error of Lehr has a line with the cure, too.
    error = dropwhile(lambda line: line.startswith(" "), lines[frames[-1] + 1 :])
    return " ".join(line.strip() for line in error)
