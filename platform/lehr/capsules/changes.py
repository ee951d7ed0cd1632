"""What changed from one capsule to another."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, NamedTuple

from lehr.capsules import archive

_LONGEST_TEXT = 1 << 20
_LONGEST_PATCH = 200_000
_MOST_PATCHES = 500


class CodeChange(NamedTuple):
    name: str
    change: Literal["added", "removed", "changed"]
    patch: str | None
    """Unified diff; None for a file that is not text, or too large."""


def changes_between(first: Path, second: Path) -> list[CodeChange]:
    """Return the files that differ, by name, each with its unified diff.

    Raises:
        BadArchive: one is damaged.
    """
    before = {m.name: (m.sha256, m.executable) for m in archive.members(first)}
    after = {m.name: (m.sha256, m.executable) for m in archive.members(second)}
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    shown = names[:_MOST_PATCHES]
    old, new = archive.read_files(first, shown), archive.read_files(second, shown)
    found: list[CodeChange] = []
    left = _LONGEST_PATCH
    for name in names:
        kind: Literal["added", "removed", "changed"] = (
            "added" if name not in before else "removed" if name not in after else "changed"
        )
        patch = _patch(name, old.get(name, b""), new.get(name, b"")) if name in shown else None
        if patch is not None and len(patch) > left:
            patch = None
        left -= len(patch or "")
        found.append(CodeChange(name, kind, patch))
    return found


def _patch(name: str, old: bytes, new: bytes) -> str | None:
    if max(len(old), len(new)) > _LONGEST_TEXT or b"\0" in old + new:
        return None
    try:
        texts = [data.decode().splitlines(keepends=True) for data in (old, new)]
    except UnicodeDecodeError:
        return None
    lines = difflib.unified_diff(texts[0], texts[1], f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
