"""Where the tests of a source are: ``x/y.py`` has ``tests/.../x/test_y.py``, or a line in the table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from lehr_testing.paths import ROOT

TESTS_OF = {
    "platform/lehr": "tests/platform",
    "trainer/lehr_trainer": "tests/trainer",
    "api/lehr_api": "tests/api",
}
TABLE = Path(__file__).with_name("tested_elsewhere.toml")
ELSEWHERE: dict[str, dict[str, list[str]]] = tomllib.loads(TABLE.read_text())


def sources() -> Iterator[tuple[Path, Path]]:
    """Yield every source with the place of its test; migrations are excluded."""
    for root, tests in TESTS_OF.items():
        for path in sorted((ROOT / root).rglob("*.py")):
            within = path.relative_to(ROOT / root)
            if not path.name.startswith("__") and "versions" not in within.parts:
                test = f"test_{path.stem.lstrip('_')}.py"
                yield path.relative_to(ROOT), Path(tests) / within.parent / test


def listed() -> dict[Path, Path]:
    return {
        Path(folder, f"{name}.py"): Path(test)
        for folder, tests in ELSEWHERE.items()
        for test, names in tests.items()
        for name in names
    }


def test_every_source_has_a_test_of_its_name_or_a_table_row() -> None:
    known = listed()
    missing = [
        f"{source}: write {test}, or name in {TABLE.name} the test that covers it"
        for source, test in sources()
        if not (ROOT / test).is_file() and source not in known
    ]
    assert missing == []


def test_the_table_names_sources_and_tests_that_exist() -> None:
    assert [
        str(path) for pair in listed().items() for path in pair if not (ROOT / path).is_file()
    ] == []


def test_the_table_names_no_source_twice_and_none_that_has_its_own_test() -> None:
    names = [
        f"{folder}/{n}" for folder, tests in ELSEWHERE.items() for ns in tests.values() for n in ns
    ]
    assert len(names) == len(set(names))
    own = {source for source, test in sources() if (ROOT / test).is_file()}
    assert sorted(map(str, own & listed().keys())) == []
