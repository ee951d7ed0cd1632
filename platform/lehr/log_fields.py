"""The fields ``run`` and ``attempt`` of log lines, by which a run's lines are found.

Where an action is applied, a request is served, or a record is read, ``about`` binds them to
everything that is logged in between. A single line gets them by ``extra=of_attempt(...)``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from structlog.contextvars import bind_contextvars, bound_contextvars


def of_attempt(attempt_id: str) -> dict[str, str]:
    """Return the fields of an attempt and its run."""
    return {"run": attempt_id.rpartition("-")[0] or attempt_id, "attempt": attempt_id}


def of(kind: str, name: str) -> dict[str, str]:
    """Return the field of a run, a sweep or a rollout; nothing for anything else.

    ``kind``: of a subject or a change. The metrics and logs that change are a run's.
    """
    kind = "run" if kind in {"metrics", "log"} else kind
    return {kind: name} if kind in {"run", "sweep", "rollout"} else {}


def about(**fields: str) -> AbstractContextManager[None]:
    """Bind fields to what this thread or task logs within the block."""
    return bound_contextvars(**fields)


def become(**fields: str) -> None:
    """Bind fields to what this task logs from now on, as at the start of a request."""
    bind_contextvars(**fields)
