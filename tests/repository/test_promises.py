"""``docs/promises.md`` names a test for each promise; each of these tests exists."""

from __future__ import annotations

import ast
import re

from lehr_testing.paths import ROOT

PAGE = ROOT / "docs" / "promises.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def names_in(path: str) -> set[str]:
    """Return the names of a file's tests; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return set()
    return {
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def rows() -> list[list[str]]:
    """Return the cells of the tables' rows, without their headings."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|")
    ]
    return [row for row in found if not set(row[0]) <= {"-"} and "promise" not in row[0]]


def test_each_promise_names_a_test_that_exists() -> None:
    assert len(rows()) > 25
    for row in rows():
        named = NAMED.findall(row[-1])
        assert named, row
        # Nothing but tests, so that a misspelt one is not overlooked.
        assert row[-1].count("`") == 2 * len(named), row
        for path, name in named:
            assert name in names_in(path), f"{path}::{name}"


def test_tests_in_the_text_exist() -> None:
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 40
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []
