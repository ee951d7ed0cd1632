"""Whether a pattern or a folder has a file, found with a limited number of looks.

A server that checks what strangers submit must not list a whole disk, nor follow links in circles.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

MOST_ENTRIES = 20_000
_DEEPEST = 64
"""Folders below the first with a pattern. A corpus has a few; links in circles have no end."""


class GaveUp(Exception):
    """Nothing was found within the limits, and there is more."""


@dataclass
class Looks:
    """Entries of folders that may still be read, by all checks of one submission."""

    left: int = MOST_ENTRIES
    _too_deep: bool = field(default=False, init=False)
    _seen: set[tuple[int, int, int]] = field(default_factory=set, init=False)
    """Folders, by device and number, with how many parts of the pattern were left there."""

    def matches(self, pattern: str) -> bool:
        """Return whether anything exists that matches, as ``glob.glob(recursive=True)`` does.

        Raises:
            GaveUp: it is not known.
        """
        return self._any(True for _ in self._matching(pattern))

    def matches_file(self, pattern: str) -> bool:
        """Return whether a file matches.

        Raises:
            GaveUp: it is not known.
        """
        return self._any(os.path.isfile(path) for path in self._matching(pattern))

    def holds(self, folder: str, suffixes: tuple[str, ...]) -> bool:
        """Return whether the folder, or one below it, has a file with such an ending.

        Raises:
            GaveUp: it is not known.
        """
        return self._any(
            entry.name.endswith(suffixes) and os.path.isfile(entry.path)
            for entry in self._below(folder, _DEEPEST)
        )

    def few(self, path: str) -> bool:
        """Return whether it is a file, or a folder whose entries are read within the limits."""
        self._too_deep = False
        try:
            for _ in self._below(path, _DEEPEST):
                pass
        except GaveUp:
            return False
        return os.path.exists(path) and not self._too_deep

    def _any(self, found: Iterator[bool]) -> bool:
        self._too_deep = False
        self._seen.clear()
        if any(found):
            return True
        if self._too_deep:
            raise GaveUp
        return False

    def _matching(self, pattern: str) -> Iterator[str]:
        parts = os.path.join(os.getcwd(), pattern).split("/")
        fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
        return self._match("/".join(fixed), parts[len(fixed) :], _DEEPEST)

    def _match(self, folder: str, parts: Sequence[str], deepest: int) -> Iterator[str]:
        if not parts:
            if os.path.lexists(folder):
                yield folder
            return
        part, rest = parts[0], parts[1:]
        if glob.has_magic(part) and not self._is_new(folder, len(parts)):
            return
        if part == "**":
            yield from self._match(folder, rest, deepest)
            yield from (
                path
                for entry in self._read(folder, _visible, deepest)
                if not rest or _is_folder(entry)
                for path in self._match(entry.path, parts, deepest - 1)
            )
        elif glob.has_magic(part):
            for entry in self._read(folder, _named(part), deepest):
                yield from self._match(entry.path, rest, deepest - 1)
        else:
            yield from self._match(f"{folder}/{part}", rest, deepest - 1)

    def _is_new(self, folder: str, parts: int) -> bool:
        """Return whether the rest of the pattern was not yet looked for there: links may circle."""
        try:
            status = os.stat(folder or "/")
        except OSError:
            return False
        key = (status.st_dev, status.st_ino, parts)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _below(self, folder: str, deepest: int) -> Iterator[os.DirEntry[str]]:
        for entry in self._read(folder, lambda _: True, deepest):
            yield entry
            if not entry.is_symlink() and _is_folder(entry):
                yield from self._below(entry.path, deepest - 1)

    def _read(
        self, folder: str, wanted: Callable[[str], bool], deepest: int
    ) -> Iterator[os.DirEntry[str]]:
        if deepest <= 0:
            self._too_deep = True
            return
        for entry in _entries(folder or "/", self.left + 1):
            if self.left <= 0:
                raise GaveUp
            self.left -= 1
            if wanted(entry.name):
                yield entry


def _entries(folder: str, most: int) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    # It may be no folder, or one that may not be read, which some file systems show only after its
    # first entries: glob has no further match there either.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found.extend(itertools.islice(entries, most))
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # Of a link to what this user may not see.
        return False


def _visible(name: str) -> bool:
    return not name.startswith(".")


def _named(part: str) -> Callable[[str], bool]:
    hidden = part.startswith(".")
    return lambda name: (hidden or _visible(name)) and fnmatch.fnmatch(name, part)
