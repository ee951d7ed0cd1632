"""Quotas of projects."""

from __future__ import annotations

from lehr.schemas.base import View


class QuotaView(View):
    """The most GPUs that the runs of a project hold at a time."""

    project: str
    gpus: int
    changed_at: float
    """When it was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it; user is the server's own token."""


class QuotasView(View):
    quotas: list[QuotaView]
    """By project."""
