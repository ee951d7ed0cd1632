"""Each file of the product and of the tests is short enough to read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr_testing.paths import ROOT

LONGEST = 400
"""Lines. A longer file has more than one job: split it by job, and name each part by its job."""
PLACES = ["platform", "trainer", "api", "tests"]
SUFFIXES = {".js", ".py"}


def sources(place: Path) -> list[Path]:
    return [
        path
        for path in sorted(place.rglob("*"))
        if path.suffix in SUFFIXES and not {"__pycache__", "node_modules"} & set(path.parts)
    ]


def too_long(place: Path) -> list[str]:
    """Return the sources of more lines than ``LONGEST``, each with its number of lines."""
    found = []
    for path in sources(place):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST:
            found.append(f"{path.relative_to(place)}: {lines} lines")
    return found


@pytest.mark.parametrize("place", PLACES)
def test_no_source_has_more_than_400_lines(place: str) -> None:
    assert sources(ROOT / place), f"{place} has no sources: correct PLACES"
    assert too_long(ROOT / place) == [], f"split what has more than {LONGEST} lines, by job"


def test_longer_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.js").write_text("x\n" * (LONGEST + 1))
    (tmp_path / "short.py").write_text("x\n" * LONGEST)
    (tmp_path / "data.csv").write_text("x\n" * 1000)
    assert too_long(tmp_path) == ["long.js: 401 lines"]
