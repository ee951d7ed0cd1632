"""Short random ids: easy to read aloud, hard to confuse, never parsed as a number."""

from __future__ import annotations

import re
import secrets

_LETTERS = "abcdefghjkmnpqrstuvwxyz"
_ALPHABET = _LETTERS + "23456789"
LEAST_PART = 4
"""A part of an id with fewer letters names nothing: a typing mistake would often find a run."""
_ATTEMPT = re.compile(r"([a-z0-9]+)-([1-9][0-9]{0,8})")


def new_id() -> str:
    """Return eight characters, the first a letter: 31^7 x 23 ids, so a clash is unlikely."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_ALPHABET) for _ in range(7))


def is_part_of_an_id(text: str) -> bool:
    """Whether a user may mean an id by its beginning."""
    return text.isalnum() and len(text) >= LEAST_PART


def attempt_id(run_id: str, number: int) -> str:
    return f"{run_id}-{number}"


def run_of(attempt_id: str) -> str:
    """Return the run's id: ``k3f9x2ab`` for ``k3f9x2ab-2``."""
    return attempt_id.rpartition("-")[0]


def split_attempt_id(text: str) -> tuple[str, int] | None:
    """Return ``("k3f9x2ab", 2)`` for ``k3f9x2ab-2``; None if it is not an attempt's id."""
    match = _ATTEMPT.fullmatch(text)
    return (match.group(1), int(match.group(2))) if match else None


def unlike_ids(count: int) -> list[str]:
    """Return so many ids, all different."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[new_id()] = None
    return list(drawn)
