"""What changed from one capsule to another."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

from lehr.code import archive

_LONGEST_TEXT = 1 << 20
_LONGEST_PATCH = 200_000
_MOST_PATCHES = 500
_MOST_STEPS = 5_000_000
"""Steps of difflib for one answer: a few seconds. Files of many equal lines need far more."""


class CodeChange(NamedTuple):
    name: str
    change: Literal["added", "removed", "changed"]
    patch: str | None  # Unified diff; None for a file that is not text, or too large.


class _TooLong(Exception):
    """The comparison would take more steps than are left."""


class _Steps:
    """The steps that are left for all files of one answer."""

    def __init__(self, count: int) -> None:
        self._left = count

    def take(self, count: int) -> None:
        if count > self._left:
            raise _TooLong
        self._left -= count


class _Matcher(difflib.SequenceMatcher[str]):
    """A matcher that pays for each search before it begins it."""

    def __init__(self, old: Sequence[str], new: Sequence[str], steps: _Steps) -> None:
        super().__init__(None, old, new)
        self._steps = steps
        places: dict[str, list[int]] = self.b2j  # type: ignore[attr-defined]
        weights = (1 + len(places.get(line, ())) for line in old)
        self._until = [0, *accumulate(weights)]

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        last = len(self._until) - 1 if ahi is None else ahi
        self._steps.take(self._until[last] - self._until[alo])
        return super().find_longest_match(alo, ahi, blo, bhi)


def changes_between(first: Path, second: Path) -> list[CodeChange]:
    """Return the files that differ, by name, each with its unified diff.

    Raises:
        BadArchive: one is damaged.
    """
    before = {m.name: m for m in archive.members(first)}
    after = {m.name: m for m in archive.members(second)}
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    small = [
        name
        for name in names
        if all(m.size <= _LONGEST_TEXT for m in (before.get(name), after.get(name)) if m)
    ]
    shown = set(small[:_MOST_PATCHES])
    old, new = archive.read_files(first, shown), archive.read_files(second, shown)
    steps = _Steps(_MOST_STEPS)
    found: list[CodeChange] = []
    left = _LONGEST_PATCH
    for name in names:
        kind: Literal["added", "removed", "changed"] = (
            "added" if name not in before else "removed" if name not in after else "changed"
        )
        texts = (old.get(name, b""), new.get(name, b""))
        patch = _patch(name, *texts, steps) if name in shown and left > 0 else None
        if patch is not None and len(patch) > left:
            patch = None
        left -= len(patch or "")
        found.append(CodeChange(name, kind, patch))
    return found


def _patch(name: str, old: bytes, new: bytes, steps: _Steps) -> str | None:
    if b"\0" in old + new:
        return None
    try:
        texts = [data.decode().splitlines(keepends=True) for data in (old, new)]
        _Matcher(texts[0], texts[1], steps).get_matching_blocks()
    except (UnicodeDecodeError, _TooLong):
        return None
    lines = difflib.unified_diff(texts[0], texts[1], f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
