"""Whose request the current thread or task works for."""

from __future__ import annotations

from contextvars import ContextVar

from lehr.base.access import OWNER

_name: ContextVar[str] = ContextVar("actor", default=OWNER)


def current() -> str:
    """Return the name of the token of the current request; ``user`` is the home's own token."""
    return _name.get()


def become(name: str) -> None:
    """Record what follows in this context under the name of a token."""
    _name.set(name)
