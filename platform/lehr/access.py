"""Roles of tokens, and which role each request needs.

A viewer reads. A researcher also submits, changes and ends runs. An admin also decides on tokens,
nodes, webhooks, secrets and quotas. The home's own token is an admin.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    RESEARCHER = "researcher"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role may do what the other may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


OWNER = "user"
"""The name under which the home's own token is recorded."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
"""The names of tokens."""
RESERVED = frozenset({OWNER, "dispatcher", "trainer", "sweep", "rollout", "alert", "server"})
"""Names that the record uses for itself as actors."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
_API = "/api/v1"
_ADMINS_ONLY = re.compile(
    rf"{_API}/(?:tokens|audit)(?:/|\Z)"
    rf"|{_API}/cluster/(?:nodes/[^/]+/(?:exclude|readmit|until)|join|leave)\Z"
)
"""Paths whose requests need an admin, except that reading the cluster needs none."""
_ADMINS_CHANGE = re.compile(rf"{_API}/(?:webhooks|secrets|quotas)(?:/|\Z)")
"""Paths that everybody may read and admins may change."""
_ONLY_READ = re.compile(rf"{_API}/(?:sweeps/[^/]+/transfer|login-links)\Z|/logout\Z")
"""Paths that are posted to, and change nothing that others see."""

_RESEARCHERS_READ = re.compile(rf"{_API}/code(?:/|\Z)")
"""Paths that nobody below a researcher reads: the code of people, as they sent it."""


def needed(method: str, path: str) -> Role:
    """Return the lowest role that a request of a person needs."""
    if _ADMINS_ONLY.match(path):
        return Role.ADMIN
    if _RESEARCHERS_READ.match(path):
        return Role.RESEARCHER
    if method in READING or _ONLY_READ.match(path):
        return Role.VIEWER
    return Role.ADMIN if _ADMINS_CHANGE.match(path) else Role.RESEARCHER
