"""Saved views of the runs page."""

from __future__ import annotations

from lehr.schemas.base import View


class SavedView(View):
    name: str
    query: str
    """The query of the runs page's address, e.g. ``filter=state:running&sort=loss``."""
    saved_at: float


class SavedViews(View):
    views: list[SavedView]
    """By name."""
