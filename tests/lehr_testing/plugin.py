"""Rules of the whole suite: a result for every test, no unexpected skip, a clean environment.

The examples of Hypothesis are in ``properties``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import pytest

from lehr_testing import properties

# Variables of the user's environment that would affect Lehr, W&B, S3, Ray or the output width.
FOREIGN = re.compile(
    r"LEHR_.*|WANDB_.*|AWS_.*|RAY_.*|(https?|all|no|ftp)_proxy|COLUMNS|LINES", re.IGNORECASE
)
# These configure the tests themselves.
OURS = re.compile(r"LEHR_RENEW_GOLDENS|LEHR_TEST_.*|LEHR_FAULTS_.*")
# A cache outside the session would hide that something no longer compiles.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

MAY_SKIP = {
    "tests/platform/faces/cli/test_completion.py::*": "zsh and fish need not be installed",
    "tests/gpu/*": "kernels that not every GPU has",
    "tests/faults/*": "network and pid namespaces and mounts need privileges",
    "tests/trainer/*::test_a_full_disk_*": "mounting a small disk needs root",
    "tests/trainer/runtime/test_distributed.py::test_missing_device_is_a_bad_config*": "there is a GPU",
    "tests/trainer/test_assemble.py::test_config_that_cannot_train_is_refused_before_data_is_prepared*": "there is a GPU",
}
"""Node ids of tests that may be skipped where skips fail, and why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lehr").addoption(
        "--strict-results",
        action="store_true",
        default=bool(os.environ.get("CI")),
        help="Fail on skipped tests that are not in the table of lehr_testing/plugin.py; "
        "on by itself where CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment before any fixture or worker starts."""
    for name in foreign(os.environ):
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what runs in its background. Programs that the tests start would ignore
        # it too, and never see the interrupts that they are sent.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not is_worker(config):
        caches = tempfile.mkdtemp(prefix="lehr-tests-")
        config.add_cleanup(lambda: shutil.rmtree(caches, ignore_errors=True))
        for name in CACHES:
            # The workers inherit them.
            os.environ[name] = os.path.join(caches, name.lower())  # noqa: PTH118
        config.pluginmanager.register(Results(), "lehr-results")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage rarely, and only among what tests make: it took a tenth of the whole time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def foreign(names: Iterable[str]) -> list[str]:
    return [name for name in names if FOREIGN.fullmatch(name) and not OURS.fullmatch(name)]


@pytest.fixture(autouse=True, scope="module")
def clean_environment_of_module() -> Iterator[None]:
    """Restore what fixtures of a module changed in the environment, before the next module."""
    with _environment_kept():
        yield


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """Restore what a test changed in the environment."""
    with _environment_kept():
        yield


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    yield
    # pytest itself sets and removes the current test's name.
    changed = {
        name
        for name, _ in before.items() ^ dict(os.environ).items()
        if name != "PYTEST_CURRENT_TEST"
    }
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


# -------------------------------------------------------------------------------------- groups


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the group of a test to its node id, for the process that distributes the tests.

    pytest-xdist 3.8 writes it to a field that pytest 9.2 no longer reads. The groups with a name
    wait longest, for a server or a browser, so they come first.
    """
    if not is_worker(config):
        return
    for item in items:
        for mark in item.iter_markers("xdist_group"):
            item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one worker, as those of a group: they share its fixtures."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    # Else it would put first what has most tests.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


# ------------------------------------------------------------------------------------- results


class Results:
    """Count the tests that were selected and those with a result, in the reporting process."""

    def __init__(self) -> None:
        self.selected = 0
        self.reported: set[str] = set()
        self.missing = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.selected = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Replace the hook above: with pytest-xdist only the workers collect."""
        self.selected = len(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reported.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail when tests have no result of their own, unless the run was cut short on purpose."""
        option = session.config.option
        ended = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if ended and not (option.maxfail or option.collectonly or session.shouldstop):
            self.missing = self.selected - len(self.reported)
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.missing:
            text = f"{self.missing} of {self.selected} selected tests have no result of their own"
            terminalreporter.write_line(text, red=True, bold=True)


# --------------------------------------------------------------------------------------- skips


def fail_if_skipped(config: pytest.Config, report: Any) -> None:
    """Turn a skip that is not in ``MAY_SKIP`` into a failure if requested."""
    if not config.getoption("strict_results") or report.outcome != "skipped":
        return
    allowed = any(fnmatchcase(report.nodeid, pattern) for pattern in MAY_SKIP)
    if allowed or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = (
        f"{reason}\n{report.nodeid} may not be skipped here: what it needs must be installed, "
        "or it must have a line in MAY_SKIP of tests/lehr_testing/plugin.py."
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    fail_if_skipped(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    fail_if_skipped(collector.config, report)
    return report


pytest_plugins = ["pytester"]

properties.register_profiles()
