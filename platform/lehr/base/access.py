"""Roles of tokens, and whose request the current thread or task works for.

Each route of the API states the role that it needs. A viewer reads. A researcher also submits,
changes and ends runs. An admin also decides on tokens, nodes, secrets and quotas. The
home's own token is an admin.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    RESEARCHER = "researcher"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


OWNER = "user"  # The name under which the home's own token is recorded.

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")  # The names of tokens.
RESERVED = frozenset({OWNER, "dispatcher", "trainer", "sweep", "rollout", "alert", "server"})
"""Names that the record uses for itself as actors."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})


_name: ContextVar[str] = ContextVar("actor", default=OWNER)


def current_actor() -> str:
    """Return the name of the token of the current request; ``user`` is the home's own token."""
    return _name.get()


def become_actor(name: str) -> None:
    """Record what follows in this context under the name of a token."""
    _name.set(name)
