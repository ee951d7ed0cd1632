"""Every test belongs to a tier, and the last passed run of a tier is recorded correctly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from lehr_testing import plugin, tiers
from lehr_testing.paths import ROOT
from lehr_testing.tiers import Outcome

MARKS = ("nightly", "faults", "gpu", "browser", "slow", "hypothesis")


def selected_by(marks: set[str]) -> list[str]:
    return [
        name
        for name, tier in tiers.tiers().items()
        if Expression.compile(tier.select).evaluate(lambda mark, **_: mark in marks)
    ]


def test_every_collected_test_belongs_to_a_tier(pytestconfig: pytest.Config) -> None:
    """Covers all tests collected by this session before selection: with `make test` the whole suite."""
    collected = pytestconfig.stash[plugin.COLLECTED]
    assert any("test_every_collected_test" in nodeid for nodeid in collected)
    assert [nodeid for nodeid, marks in collected.items() if not selected_by(marks)] == []


def test_any_combination_of_markers_belongs_to_a_tier() -> None:
    for number in range(2 ** len(MARKS)):
        marks = {mark for bit, mark in enumerate(MARKS) if number >> bit & 1}
        assert selected_by(marks), marks


@pytest.mark.parametrize(
    ("marks", "chosen"),
    [
        (set(), ["test"]),
        ({"slow", "browser"}, ["test"]),
        ({"hypothesis"}, ["test", "nightly"]),
        ({"nightly"}, ["nightly"]),
        ({"faults"}, ["faults"]),
        ({"faults", "nightly"}, ["faults"]),
        ({"gpu", "nightly"}, ["gpu"]),
    ],
)
def test_markers_choose_the_tier(marks: set[str], chosen: list[str]) -> None:
    assert selected_by(marks) == chosen


@pytest.mark.parametrize("name", tiers.tiers())
def test_make_runs_every_tier(name: str) -> None:
    target = {"nightly": "test-nightly", "gpu": "gpu-tests"}.get(name, name)
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"tests/lehr_testing/tiers.py {name}" in recipe


def test_tier_with_arguments_runs_only_the_named_tests() -> None:
    tier = tiers.tiers()["faults"]
    assert tier.command(["tests/faults/test_clocks.py"])[3:] == [
        *("-m", "faults and not gpu"),
        "tests/faults/test_clocks.py",
    ]
    assert tier.command([])[-1] == "tests"


def test_passed_run_replaces_only_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "TIERS.md"
    tiers.record("gpu", "aaaa", Outcome(39, 1, 600.0), path)
    tiers.record("test", "bbbb", Outcome(2500, 2, 480.0), path)
    tiers.record("gpu", "cccc", Outcome(40, 0, 660.0), path)
    rows = [line.split(" | ") for line in path.read_text().splitlines()[6:]]
    assert [row[0] for row in rows] == [f"| {name}" for name in tiers.tiers()]
    by_name = {row[0].removeprefix("| "): row[2:6] for row in rows}
    assert by_name["gpu"] == ["cccc", "40", "0", "11"]
    assert by_name["test"] == ["bbbb", "2500", "2", "8"]
    assert "not yet run" in path.read_text()


def test_dirty_working_tree_has_no_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        given = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", *given, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    for name in ("TIERS.md", "code.py"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "--quiet", "--message", "First")
    head = git("rev-parse", "HEAD")
    assert head.startswith(tiers.commit(tmp_path) or "nothing")
    (tmp_path / "TIERS.md").write_text("2")
    assert head.startswith(tiers.commit(tmp_path) or "nothing")
    (tmp_path / "code.py").write_text("2")
    assert tiers.commit(tmp_path) is None


def test_the_outcome_is_read_from_pytest_s_report(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_a(n): pass\n"
        "def test_b(): pytest.skip('not here')\n"
    )
    report = pytester.path / "report.xml"
    pytester.runpytest_inprocess(f"--junitxml={report}").assert_outcomes(passed=3, skipped=1)
    found = tiers.outcome(report)
    assert (found.passed, found.skipped) == (3, 1)
    assert found.seconds > 0
