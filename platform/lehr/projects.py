"""The projects that the current request may see and use: all of them, or those of its token.

The store finds, lists, creates and changes runs, sweeps and rollouts of these projects only; others
do not exist for the request. The server's own threads have no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lehr.errors import Forbidden

Limit = frozenset[str] | None
"""Names of projects; None: all projects."""

ANOTHERS = "a run of another project"
"""Stands for the name of a run that the reader may not see."""

_limit: ContextVar[Limit] = ContextVar("projects", default=None)


def current() -> Limit:
    """Return the projects of the current request; None: all."""
    return _limit.get()


def become(limit: Limit) -> None:
    """Limit what follows in this context."""
    _limit.set(limit)


@contextmanager
def within(limit: Limit) -> Iterator[None]:
    """Limit a block. With None, a view of the whole cluster may be computed, then masked."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def sees(project: str) -> bool:
    """Return whether the current request may see the project."""
    limit = _limit.get()
    return limit is None or project in limit


def require(project: str) -> None:
    """Raise Forbidden unless the current request may submit to the project."""
    if not sees(project):
        raise Forbidden(refusal(project))


def refusal(project: str) -> str:
    """Return why nothing can be submitted to the project, with the projects that can be used."""
    return f"this token cannot use project {project!r}; it is limited to {listed(_limit.get())}"


def listed(limit: Limit) -> str:
    """Return the names of the projects in words."""
    names = sorted(limit or ())
    return f"{'project' if len(names) == 1 else 'the projects'} {', '.join(names)}"


def may_name_secret(name: str) -> bool:
    """Return whether a spec of the current request may name the secret.

    A training can read the secrets that its spec names. So a limited token may name only those
    that are made for its projects: PROJECT.NAME. Projects may have dots; the last one counts, so
    ``a.b.key`` is of the project ``a.b`` alone.
    """
    limit = _limit.get()
    project, dot, _ = name.rpartition(".")
    return limit is None or (bool(dot) and project in limit)
