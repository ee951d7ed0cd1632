"""The plugin of the suite, tested on small suites."""

from __future__ import annotations

import pytest

from lehr_testing import plugin
from lehr_testing.paths import TESTS

TWO_WORKERS = ("-p", "xdist", "-n", "2", "--dist", "loadgroup")
BOTH = pytest.mark.parametrize("workers", [(), TWO_WORKERS], ids=["alone", "workers"])


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a small suite that has the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib -p lehr_testing.plugin\n")
    return pytester


EQUAL_IDS = """
import pytest

class Same(pytest.Item):
    def runtest(self):
        pass

def pytest_pycollect_makeitem(collector, name, obj):
    return Same.from_parent(collector, name="test_one") if name.startswith("test_") else None
"""
FORGETS = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    return True if item.name == "test_b" else None
"""


@BOTH
@pytest.mark.parametrize("conftest", [EQUAL_IDS, FORGETS], ids=["equal ids", "no result"])
def test_a_test_without_a_result_of_its_own_fails_the_session(
    suite: pytest.Pytester, conftest: str, workers: tuple[str, ...]
) -> None:
    suite.makeconftest(conftest)
    suite.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass\n")
    done = suite.runpytest_subprocess(*workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["1 of 2 selected tests have no result of their own"])


SKIPS = """
import pytest

def test_a():
    pytest.skip("no such program")

@pytest.mark.xfail(reason="known")
def test_b():
    assert 0
"""


def test_skip_without_a_reason_in_the_table_fails_if_requested(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile(test_it=SKIPS)
    suite.runpytest_inprocess().assert_outcomes(skipped=1, xfailed=1)
    monkeypatch.setenv("CI", "true")
    done = suite.runpytest_inprocess()
    done.assert_outcomes(failed=1, xfailed=1)
    done.stdout.fnmatch_lines(["*no such program*", "*test_it.py::test_a may not be skipped*"])
    monkeypatch.setitem(plugin.MAY_SKIP, "test_it.py::test_a", "a program that few have")
    suite.runpytest_inprocess().assert_outcomes(skipped=1, xfailed=1)


SEES = """
import os

FOREIGN = ["LEHR_HOME", "WANDB_API_KEY", "AWS_PROFILE", "RAY_ADDRESS", "https_proxy", "COLUMNS"]

def test_a():
    assert [name for name in FOREIGN if name in os.environ] == []
    assert os.environ["LEHR_RENEW_GOLDENS"] == "1"
    assert os.path.basename(os.path.dirname(os.environ["TRITON_CACHE_DIR"])).startswith("lehr-tests-")
    os.environ["LEHR_HOME"] = "/left/behind"
    del os.environ["LEHR_RENEW_GOLDENS"]

def test_b():
    assert "LEHR_HOME" not in os.environ
    assert os.environ["LEHR_RENEW_GOLDENS"] == "1"
"""


def test_every_test_begins_with_a_clean_environment(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEHR_HOME", "WANDB_API_KEY", "AWS_PROFILE", "RAY_ADDRESS", "https_proxy"):
        monkeypatch.setenv(name, "/of/who/runs/the/tests")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LEHR_RENEW_GOLDENS", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/yesterday")
    suite.makepyfile(test_it=SEES)
    suite.runpytest_inprocess().assert_outcomes(passed=2)


WITNESS = """
import os, pytest

{marker}
@pytest.mark.parametrize("n", range(3))
def test_it(n):
    with open({seen!r}, "a") as seen:
        seen.write(os.environ["PYTEST_XDIST_WORKER"] + " {name}\\n")
"""


def test_tests_of_a_file_or_group_stay_in_one_worker(suite: pytest.Pytester) -> None:
    seen = suite.path / "seen"
    named = "@pytest.mark.xdist_group('together')"
    markers = {"a": "", "b": named, "c": named, "d": ""}
    suite.makepyfile(
        **{
            f"test_{name}": WITNESS.format(marker=marker, seen=str(seen), name=name)
            for name, marker in markers.items()
        }
    )
    suite.runpytest_subprocess(*TWO_WORKERS).assert_outcomes(passed=12)
    workers: dict[str, set[str]] = {}
    for line in seen.read_text().splitlines():
        worker, name = line.split()
        workers.setdefault(name, set()).add(worker)
    assert all(len(names) == 1 for names in workers.values()), workers
    assert workers["b"] == workers["c"]
    assert len(set.union(*workers.values())) == 2
