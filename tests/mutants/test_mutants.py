"""The mutation tests on a small package whose tests have a known gap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lehr_testing.paths import TESTS
from mutants.__main__ import code_digests
from mutants.generate import mutants
from mutants.score import Score, name_of

pytestmark = pytest.mark.slow
whole = pytest.mark.nightly
"""Marks tests that judge mutants in processes: together they take 20 seconds."""

SOURCE = '''\
"""A text."""

import re

WORD = re.compile("ab+")
TABLE = {"left": "out"}
TIMEOUT_S = 20


def tested(x: int, most: int = 3) -> int:
    if x > most:
        raise ValueError(f"{x} is too large")
    return x


def untested(x: int) -> int:
    return x * 7


def countdown(n: int) -> int:
    while n:
        n -= 1
    return n
'''

TESTS_OF_IT = """\
import subprocess, sys
import pytest
from planted.thing import WORD, countdown, tested, untested

def test_it():
    assert tested(3) == 3
    with pytest.raises(ValueError):
        tested(4)

def test_calls_only():
    untested(1)

def test_countdown():
    assert countdown(2) == 0

def test_word():
    assert WORD.fullmatch("abb")

def test_in_another_process():
    code = "from planted.other import six; print(six())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    from planted.other import six
    six()
    assert done.stdout == "6\\n"
"""

TARGETS = """\
roots = ["src"]

[[group]]
name = "planted"
sources = ["src/planted/*.py"]
tests = ["tests"]
preload = []
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "src/planted").mkdir(parents=True)
    (root / "src/planted/thing.py").write_text(SOURCE)
    (root / "src/planted/other.py").write_text("def six() -> int:\n    return 6\n")
    (root / "tests").mkdir()
    (root / "tests/test_thing.py").write_text(TESTS_OF_IT)
    (root / "targets.toml").write_text(TARGETS)
    return root


def judge(root: Path, *options: str) -> tuple[dict[str, str], subprocess.CompletedProcess[str]]:
    """Names of mutants, each with its outcome."""
    command = [sys.executable, "-m", "mutants", "--root", str(root), "--grace", "0.1", *options]
    command += ["--targets", str(root / "targets.toml"), "--survivors", str(root / "why.toml")]
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = (root / ".mutants/results.jsonl").read_text().splitlines()
    results = {tuple(one["key"]): one for one in map(json.loads, lines)}
    found = {}
    for file in sorted((root / "src/planted").glob("*.py")):
        for mutant in mutants(str(file.relative_to(root)), file.read_bytes()):
            if mutant.key in results:
                found[name_of(mutant)] = results[mutant.key]["outcome"]
    return found, done


@pytest.fixture(scope="module")
def judged(project: Path) -> dict[str, str]:
    return judge(project)[0]


@whole
def test_mutant_of_an_asserted_line_is_killed(judged):
    assert judged["tested: if x > most: -> if x >= most:"] == "killed"
    assert judged["tested: return x -> return None"] == "killed"


@whole
def test_mutant_of_an_unasserted_line_survives(judged):
    assert judged["untested: return x * 7 -> return x / 7"] == "survived"
    assert judged["untested: return x * 7 -> return x * 8"] == "survived"


@whole
def test_an_endless_loop_is_ended_and_counts_as_killed(judged):
    assert judged["countdown: n -= 1 -> n += 1"] == "timeout"


@whole
def test_mutant_of_import_time_code_is_judged_by_a_new_import(judged):
    name = ': WORD = re.compile("ab+") -> WORD = re.compile("XXab+XX")'
    assert judged[name] == "killed"
    assert (
        judged[
            "tested: def tested(x: int, most: int = 3) -> int: -> def tested(x: int, most: int = 4) -> int:"
        ]
        == "killed"
    )


@whole
def test_processes_that_tests_start_have_the_mutant(judged):
    assert judged["six: return 6 -> return 7"] == "killed"


@whole
def test_tables_messages_settings_and_annotations_have_no_mutants(judged):
    assert not [name for name in judged if "TABLE" in name and "XX" in name]
    assert not [name for name in judged if "21" in name or "too large" in name.partition("->")[2]]


@whole
def test_sources_are_not_touched(project, judged):
    assert (project / "src/planted/thing.py").read_text() == SOURCE
    assert not [path for path in project.rglob("*") if "XX" in path.name or path.suffix == ".aside"]


@whole
def test_second_run_reuses_the_results(project, judged):
    again, done = judge(project)
    assert "0 to judge" in done.stdout
    assert again == judged


@whole
def test_explained_survivor_counts_and_a_stale_explanation_is_named(project, judged):
    (project / "why.toml").write_text(
        '["src/planted/thing.py"]\n'
        '"untested: return x * 7 -> return x * 8" = "a word"\n'
        '"gone: a -> b" = "a word"\n'
    )
    _, done = judge(project)
    survivors = [
        one["name"]
        for one in json.loads((project / ".mutants/result.json").read_text())["survivors"]
    ]
    assert "untested: return x * 7 -> return x / 7" in survivors
    assert "untested: return x * 7 -> return x * 8" not in survivors
    assert "No such mutant any more: gone: a -> b" in done.stdout
    _, sampled = judge(project, "--sample", "1")
    stale = [line for line in sampled.stdout.splitlines() if "any more" in line]
    assert stale == ["No such mutant any more: gone: a -> b (src/planted/thing.py)"]
    (project / "why.toml").unlink()


@whole
def test_comparison_with_a_commit_counts_only_changed_lines(project, judged):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "src"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=project, check=True)
    changed = SOURCE.replace("x * 7", "x * 9")
    (project / "src/planted/thing.py").write_text("# A line more.\n" + changed)
    try:
        found, done = judge(project, "--base", "HEAD")
    finally:
        (project / "src/planted/thing.py").write_text(SOURCE)
    assert "planted: 3 mutants, 3 to judge" in done.stdout
    assert done.returncode == 1
    assert found["untested: return x * 9 -> return x * 10"] == "survived"


def test_key_is_stable_when_lines_shift():
    before = mutants("a.py", SOURCE.encode())
    after = mutants("a.py", b"# A line more.\n" + SOURCE.encode())
    assert [mutant.key for mutant in before] == [mutant.key for mutant in after]
    assert len({mutant.key for mutant in before}) == len(before)


def test_results_are_kept_if_only_texts_or_layout_change():
    plain = code_digests("a.py", SOURCE)
    assert set(plain) == {"a.py:", "a.py:tested", "a.py:untested", "a.py:countdown"}
    for same in (
        SOURCE.replace('"""A text."""', '# None.\n"""Another."""'),
        SOURCE.replace("is too large", "is larger than may be"),
    ):
        assert code_digests("a.py", same) == plain
    other = code_digests("a.py", SOURCE.replace("x * 7", "x * 8"))
    assert [name for name in plain if plain[name] != other[name]] == ["a.py:", "a.py:untested"]
    assert code_digests("a.py", SOURCE.replace("ab+", "ac+")) != plain


def test_the_score_counts_killed_and_explained():
    one, other, third = mutants("a.py", SOURCE.encode())[:3]
    outcomes = {one: "killed", other: "survived", third: "unreached"}
    results = {m.key: {"outcome": o, "seconds": 1.0} for m, o in outcomes.items()}
    every = [one, other, third]
    score = Score(every, every, results, {"a.py": {name_of(other): "a word"}})
    assert score.share == pytest.approx(2 / 3)
    assert [mutant for mutant, _ in score.unexplained] == [third]
