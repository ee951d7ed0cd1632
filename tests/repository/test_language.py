"""Code and docs use no private references: names that only their authors can resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lehr_testing.paths import ROOT

PLACES = [
    "platform",
    "trainer",
    "api",
    "docs",
    "sweeps",
    "deploy",
    ".github",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
SUFFIXES = {
    "", ".css", ".html", ".ipynb", ".js", ".json", ".mako", ".md", ".py", ".service", ".svg",
    ".toml", ".yaml", ".yml", ".Dockerfile",
}  # fmt: skip

PRIVATE = re.compile(
    r"""
    \bP[12]\b                          # P1, P2
    | \bG's\b | \(G\) | \(G, | , [ ] G\)   # G as the name of a study
    | \(A\d{1,2}\b[^)]*\)              # (A13), (A24, A27)
    | (?<!\w)A\d{1,2}:                 # A1:
    | \breference[ ]logs?\b
    | \bthe[ ]logs'
    """,
    re.VERBOSE,
)


def private_references(text: str) -> list[tuple[int, str]]:
    """Return line number and text of each private reference."""
    return [
        (number, found.group())
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) < 1000  # longer lines are encoded images
        for found in PRIVATE.finditer(line)
    ]


def files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(
        path
        for path in place.rglob("*")
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts
    )


@pytest.mark.parametrize("place", PLACES)
def test_there_are_no_private_references(place: str) -> None:
    assert files(ROOT / place), f"{place} is missing: correct PLACES"
    found = [
        f"{path.relative_to(ROOT)}:{number}: {text!r}"
        for path in files(ROOT / place)
        for number, text in private_references(path.read_text(encoding="utf-8"))
    ]
    assert not found, (
        "A private reference means nothing to a new reader. Use plain words, or name a run of "
        "docs/reference-runs.md and link to it:\n" + "\n".join(found)
    )
