"""Each file is short enough to read at once, the whole stays within its budget of lines, and a class
has a name of its own.

``make check`` prints the sizes. They rise only on purpose: raise ``size.toml`` in the same commit.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from lehr_testing.paths import ROOT

LONGEST = 400
"""Lines. A longer file has more than one job: split it by job, and name each part by its job."""
PRODUCT = ["platform", "trainer", "api"]
PLACES = [*PRODUCT, "tests"]
SUFFIXES = {".js", ".py"}
BUDGET = tomllib.loads(Path(__file__).with_name("size.toml").read_text())


def sources(place: str) -> list[Path]:
    """Return the files of Python and JavaScript. Generated files and lock files have other suffixes."""
    return [
        path
        for path in sorted((ROOT / place).rglob("*"))
        if path.suffix in SUFFIXES and not {"__pycache__", "node_modules"} & set(path.parts)
    ]


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize("place", PLACES)
def test_no_source_has_more_than_400_lines(place: str) -> None:
    assert sources(place), f"{place} has no sources: correct PLACES"
    long = {str(path): lines([path]) for path in sources(place) if lines([path]) > LONGEST}
    assert long == {}, f"split what has more than {LONGEST} lines, by job"


def test_product_and_tests_are_within_their_budget() -> None:
    product = [path for place in PRODUCT for path in sources(place)]
    sizes = {
        "product_lines": lines(product),
        "test_lines": lines(sources("tests")),
        "product_python_files": sum(path.suffix == ".py" for path in product),
    }
    rows = [f"{name}: {size} of at most {BUDGET[name]}" for name, size in sizes.items()]
    print("", *rows, sep="\n")
    above = {name: size for name, size in sizes.items() if size > BUDGET[name]}
    assert above == {}, f"more than tests/repository/size.toml allows: {BUDGET}"


def test_no_public_class_name_occurs_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("platform/lehr", "api/lehr_api", "trainer/lehr_trainer"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path}:{node.lineno}")
    assert len(places) > 500, "the packages have moved: correct this test"
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
