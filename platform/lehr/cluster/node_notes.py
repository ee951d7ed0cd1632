"""Which nodes are excluded and which were readmitted, from their notes in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lehr import projects
from lehr.store.tables import NodeNote

EXCLUDED: Final = "excluded"


def excluded(notes: Mapping[str, NodeNote]) -> dict[str, str]:
    """Return the excluded nodes, each with the reason, for a text after "excluded: ".

    The server's own reasons name attempts, after a colon: of all projects.
    """
    limited = projects.current() is not None
    return {
        name: note.message.partition(":")[0]
        if limited and note.actor == "dispatcher"
        # As earlier clients wrote it: "excluded by the user".
        else note.message.removeprefix("excluded ")
        for name, note in notes.items()
        if note.kind == EXCLUDED
    }


def readmitted(notes: Mapping[str, NodeNote]) -> dict[str, float]:
    """Return by node since when its failures count."""
    return {name: note.at for name, note in notes.items() if note.kind != EXCLUDED}
