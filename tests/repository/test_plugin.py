"""The plugin of the suite, tested on small suites."""

from __future__ import annotations

import json
import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdist.remote import Producer

from lehr_testing import ordering, plugin
from lehr_testing.paths import ROOT, TESTS

TWO_WORKERS = ("-p", "xdist", "-n", "2", "--dist", "loadgroup")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a small suite that has the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("LEHR_TEST_ORDER", raising=False)
    # Its modules are not this session's.
    monkeypatch.setattr(ordering, "DURATIONS", pytester.path / "durations.json")
    monkeypatch.setattr(ordering, "ROOT", pytester.path)
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib -p lehr_testing.plugin\n")
    return pytester


EQUAL_IDS = """
import pytest


class Same(pytest.Item):
    def runtest(self):
        pass

def pytest_pycollect_makeitem(collector, name, obj):
    if name.startswith("test_"):
        return [Same.from_parent(collector, name="test_one")]
"""


@pytest.mark.parametrize("workers", [(), TWO_WORKERS], ids=["alone", "workers"])
def test_two_tests_of_one_node_id_are_refused(
    suite: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    suite.makeconftest(EQUAL_IDS)
    suite.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass\n")
    done = suite.runpytest_subprocess(*workers)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*1 node ids belong to several tests*test_it.py::test_one*"])


FORGETS = """
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    return True if item.name == "test_b" else None
"""


@pytest.mark.parametrize("workers", [(), TWO_WORKERS], ids=["alone", "workers"])
def test_a_test_without_a_result_fails_the_session(
    suite: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    suite.makeconftest(FORGETS)
    suite.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass\n")
    done = suite.runpytest_subprocess(*workers)
    done.assert_outcomes(passed=1)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["1 of 2 selected tests have no result:", "*test_it.py::test_b"])


def test_session_stopped_at_its_first_failure_lists_no_missing_results(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile(test_it="def test_a(): assert 0\ndef test_b(): pass\n")
    done = suite.runpytest_inprocess("-x")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.no_fnmatch_line("*no result*")


SKIPS = """
import pytest


def test_a():
    pytest.skip("no such program")

@pytest.mark.xfail(reason="known")
def test_b():
    assert 0
"""


def test_skip_fails_only_if_requested(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it=SKIPS)
    suite.runpytest_inprocess().assert_outcomes(skipped=1, xfailed=1)
    done = suite.runpytest_inprocess("--strict-results")
    done.assert_outcomes(failed=1, xfailed=1)
    done.stdout.fnmatch_lines(["*no such program*", "*test_it.py::test_a may not be skipped*"])


def test_a_skip_with_a_reason_in_the_table_is_allowed(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugin.MAY_SKIP, "test_it.py::test_a", "a program that few have")
    suite.makepyfile(test_it=SKIPS)
    suite.runpytest_inprocess("--strict-results").assert_outcomes(skipped=1, xfailed=1)


def test_skipped_module_fails_if_skips_fail(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_it="import pytest\npytest.importorskip('no_such_module')\n")
    suite.makepyfile(test_other="def test_a(): pass\n")
    done = suite.runpytest_inprocess("--strict-results")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines(["*test_it.py may not be skipped here*"])


def test_skips_fail_by_default_in_ci(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(test_it=SKIPS)
    suite.runpytest_inprocess().assert_outcomes(failed=1, xfailed=1)


SEES = """
import os
import re

FOREIGN = ["LEHR_HOME", "WANDB_API_KEY", "AWS_PROFILE", "RAY_ADDRESS", "https_proxy", "COLUMNS"]

def test_a():
    assert [name for name in FOREIGN if name in os.environ] == []
    assert os.environ["LEHR_RENEW_GOLDENS"] == "1"
    assert os.path.basename(os.path.dirname(os.environ["TORCHINDUCTOR_CACHE_DIR"])).startswith("lehr-tests-")
    os.environ["LEHR_HOME"] = "/left/behind"
    os.environ["PATH"] = "/elsewhere"
    del os.environ["LEHR_RENEW_GOLDENS"]

def test_b():
    assert "LEHR_HOME" not in os.environ
    assert os.environ["PATH"] != "/elsewhere"
    assert os.environ["LEHR_RENEW_GOLDENS"] == "1"
"""


def test_every_test_begins_with_a_clean_environment(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEHR_HOME", "WANDB_API_KEY", "AWS_PROFILE", "RAY_ADDRESS", "https_proxy"):
        monkeypatch.setenv(name, "/of/who/runs/the/tests")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LEHR_RENEW_GOLDENS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/yesterday")
    suite.makepyfile(test_it=SEES)
    suite.runpytest_inprocess().assert_outcomes(passed=2)
    assert not Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent.exists()


def test_environment_of_a_fixture_ends_with_its_module(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_a=(
            "import os, pytest\n"
            "@pytest.fixture(scope='module')\n"
            "def data(): os.environ['LEHR_DATA'] = '/of/this/module'\n"
            "def test_a(data): assert 'LEHR_DATA' in os.environ\n"
            "def test_b(): assert 'LEHR_DATA' in os.environ\n"
        ),
        test_b="import os\ndef test_c(): assert 'LEHR_DATA' not in os.environ\n",
    )
    suite.runpytest_inprocess().assert_outcomes(passed=3)


WITNESS = """
import os, pytest

{marker}
@pytest.mark.parametrize("n", range(3))
def test_it(n):
    with open({seen!r}, "a") as seen:
        seen.write(os.environ.get("PYTEST_XDIST_WORKER", "alone") + " {name}\\n")
"""


def make_witnesses(suite: pytest.Pytester, **markers: str) -> Path:
    """Files of three tests each, which write the worker and the file's name."""
    seen = suite.path / "seen"
    suite.makepyfile(
        **{
            f"test_{name}": WITNESS.format(marker=marker, seen=str(seen), name=name)
            for name, marker in markers.items()
        }
    )
    return seen


def test_longest_tests_run_first(suite: pytest.Pytester) -> None:
    seen = make_witnesses(suite, brief="", long="", new="")
    (suite.path / "durations.json").write_text(
        json.dumps({"test_brief.py": [0.1, 0], "test_long.py": [90.0, 0]})
    )
    suite.runpytest_inprocess().assert_outcomes(passed=9)
    assert seen.read_text().split()[1::2] == ["long"] * 3 + ["new"] * 3 + ["brief"] * 3


def test_random_order_is_reproducible_with_its_seed(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number}" for number in range(8)]
    seen = make_witnesses(suite, **dict.fromkeys(names, ""))
    (suite.path / "durations.json").write_text(
        json.dumps({f"test_{name}.py": [9.0, 0] for name in names})
    )

    def order(seed: str | None) -> list[str]:
        seen.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            if seed is not None:
                patch.setenv("LEHR_TEST_ORDER", seed)
            suite.runpytest_inprocess().assert_outcomes(passed=24)
        return seen.read_text().split()[1::2]

    assert order("1") == order("1")
    assert order("1") != order("2")
    assert order(None) == sorted(order("2")) != order("2")


class Node:
    """A worker, as the scheduler sees it."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.tests: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.tests += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_compute_groups_take_the_cores_and_others_run_beside_them(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"slow": [90, 80], "long": [80, 2], "fast": [9, 8], "wait": [8, 0], "rest": [7, 0]}
    (suite.path / "durations.json").write_text(
        json.dumps({f"test_{name}.py": both for name, both in taken.items()})
    )
    monkeypatch.setattr(ordering, "CORES", 1)
    config = suite.parseconfig("-p", "xdist", "--dist", "loadgroup", "--tx", "3*popen")
    config.stash[ordering.GROUPS_FILE] = suite.path / "groups.json"
    (suite.path / "groups.json").write_text("{}")
    scheduler = ordering.make_scheduler(config, Producer("tests"))
    tests = [f"test_{name}.py::test_{number}" for name in taken for number in range(3)]
    nodes = [Node(name) for name in ("gw0", "gw1", "gw2")]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    first = [ordering.file_of(tests[node.tests[0]]) for node in nodes]
    assert first == ["test_slow.py", "test_long.py", "test_wait.py"]
    for test in nodes[0].tests[:3]:
        scheduler.mark_test_complete(nodes[0], test)
    assert "test_fast.py" in {ordering.file_of(tests[test]) for test in nodes[0].tests}
    for test in nodes[1].tests[:3]:
        scheduler.mark_test_complete(nodes[1], test)
    assert "test_rest.py" in {ordering.file_of(tests[test]) for test in nodes[1].tests}


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_time_of_a_group_does_not_depend_on_the_order_of_its_files(
    seconds: list[float], random: Random
) -> None:
    """Each worker sorts for itself, and sets have another order in each."""
    files = [f"test_{number}.py" for number in range(len(seconds))]
    durations = {file: ordering.Taken(one, one) for file, one in zip(files, seconds, strict=True)}
    shuffled = random.sample(files, len(files))
    assert ordering.total(files, durations) == ordering.total(shuffled, durations)


def test_tests_of_a_file_or_group_stay_in_one_worker(suite: pytest.Pytester) -> None:
    named = "@pytest.mark.xdist_group('together')"
    seen = make_witnesses(suite, a="", b=named, c=named, d="")
    suite.runpytest_subprocess(*TWO_WORKERS).assert_outcomes(passed=12)
    where: dict[str, set[str]] = {}
    for line in seen.read_text().splitlines():
        worker, name = line.split()
        where.setdefault(name, set()).add(worker)
    assert all(len(workers) == 1 for workers in where.values()), where
    assert where["b"] == where["c"]
    assert len(set.union(*where.values())) == 2


def test_durations_are_written_by_file_and_others_are_kept(
    suite: pytest.Pytester,
) -> None:
    make_witnesses(suite, a="", b="")
    kept = {"test_b.py": [7.0, 1.5], "test_gone.py": [8.0, 8.0]}
    (suite.path / "durations.json").write_text(json.dumps(kept))
    suite.runpytest_inprocess("--write-durations", "test_a.py").assert_outcomes(passed=3)
    written = json.loads((suite.path / "durations.json").read_text())
    assert sorted(written) == ["test_a.py", "test_b.py"]
    assert written["test_b.py"] == [7.0, 1.5]
    duration, processor = written["test_a.py"]
    assert duration >= 0
    assert processor >= 0


PROFILE = """
from hypothesis import settings
from lehr_testing.properties import examples

def test_it():
    found = settings()
    print("seen", examples(10), found.max_examples, found.derandomize, found.deadline)
"""


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ((), "seen 10 100 True None"),
        (("--hypothesis-profile=nightly",), "seen 100 1000 False None"),
    ],
    ids=["ci", "nightly"],
)
def test_property_tests_are_deterministic_except_at_night(
    suite: pytest.Pytester, arguments: tuple[str, ...], seen: str
) -> None:
    suite.makepyfile(test_it=PROFILE)
    done = suite.runpytest_subprocess("-s", "-p", "_hypothesis_pytestplugin", *arguments)
    done.stdout.fnmatch_lines([f"*{seen}"])


def test_interrupts_reach_programs_of_a_suite_that_was_started_in_the_background(
    suite: pytest.Pytester,
) -> None:
    """A shell without job control has its background programs ignore SIGINT."""
    suite.makepyfile(
        test_it="""
        import signal, subprocess, sys
        def test_a():
            code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
            assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGINT
        """
    )
    ignoring = "import signal, runpy; signal.signal(2, signal.SIG_IGN); runpy.run_module('pytest', run_name='__main__')"
    done = suite.run(sys.executable, "-c", ignoring, "-q")
    assert done.ret == 0


@pytest.mark.parametrize("pattern", plugin.MAY_SKIP)
def test_each_allowed_skip_names_a_test(pattern: str) -> None:
    names = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert any(fnmatchcase(name, pattern) for name in names)
