"""The life cycle of a run, written by hand, to compare with the table of the product.

Nothing here is imported from the product. Whoever changes the life cycle changes it here, too.
"""

from __future__ import annotations

MOVES: dict[str, frozenset[str]] = {
    "queued": frozenset({"starting", "external", "paused", "cancelled", "failed"}),
    "starting": frozenset({"running", "stopping", "failed", "queued"}),
    "running": frozenset({"stopping", "completed", "failed", "queued"}),
    "stopping": frozenset({"paused", "queued", "cancelled", "pruned", "completed", "failed"}),
    "paused": frozenset({"queued", "cancelled"}),
    "external": frozenset({"external", "completed", "failed", "cancelled"}),
    "failed": frozenset({"queued", "external"}),
    "completed": frozenset({"external"}),
    "cancelled": frozenset({"external"}),
    "pruned": frozenset(),
}
STATES = tuple(MOVES)
ENDED = frozenset({"completed", "failed", "cancelled", "pruned"})
ACTIVE = frozenset({"starting", "running", "stopping"})


def is_move(old: str | None, new: str) -> bool:
    return old is not None and new in MOVES.get(old, ())
