"""A public class has a name of its own in the three packages: one name for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from lehr_testing.paths import ROOT

PACKAGES = ("platform/lehr", "api/lehr_api", "trainer/lehr_trainer")


def repeated(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the public class names that stand in several places, given paths and texts."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def _sources(package: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_public_class_name_occurs_twice() -> None:
    sources = [source for package in PACKAGES for source in _sources(ROOT / package)]
    assert len(sources) > 500, "the packages have moved: correct PACKAGES"
    found = repeated(sources)
    assert not found, "\n".join(f"{name}: {', '.join(places)}" for name, places in found.items())
