"""Maintenance windows."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View


class MaintenanceView(View):
    """A time in which nodes are not used."""

    id: int
    node: str | None
    """null: all nodes."""
    state: Literal["open", "coming", "over"]
    starts_at: float
    """Begin of the current or next time, in seconds since the epoch; of the last one if over."""
    ends_at: float
    repeat: Literal["daily", "weekly"] | None
    """null: once."""
    note: str
    created_by: str
    """The name of the token that declared it; user is the server's own token."""
    created_at: float


class MaintenancesView(View):
    windows: list[MaintenanceView]
    """By the begin of the current or next time."""
