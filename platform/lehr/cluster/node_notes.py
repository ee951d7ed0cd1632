"""Which nodes are excluded and which were readmitted, from their notes in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lehr.store.tables import NodeNote

EXCLUDED: Final = "excluded"


def excluded(notes: Mapping[str, NodeNote]) -> dict[str, str]:
    """Return the excluded nodes, each with the reason, for a text after "excluded: "."""
    return {
        # As earlier clients wrote it: "excluded by the user".
        name: note.message.removeprefix("excluded ")
        for name, note in notes.items()
        if note.kind == EXCLUDED
    }


def readmitted(notes: Mapping[str, NodeNote]) -> dict[str, float]:
    """Return by node since when its failures count."""
    return {name: note.at for name, note in notes.items() if note.kind != EXCLUDED}
