"""Which nodes are excluded, were readmitted, or end soon, from the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from lehr.control.availability import MARGIN_S, NodeEnd
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


def node_ends(until: Mapping[str, float], now: float) -> dict[str, NodeEnd]:
    """Return the ends of the nodes that are available until a time, by the server's clock."""
    return {
        node: NodeEnd(end - MARGIN_S - now, time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(end)))
        for node, end in until.items()
    }
