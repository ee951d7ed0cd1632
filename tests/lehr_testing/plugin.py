"""Rules of the whole suite: a result for every test, no unexpected skip, a clean environment.

The order and the groups of tests are in ``ordering``, the examples of Hypothesis in ``properties``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from lehr_testing import ordering, properties

# Variables of the user's environment that would affect Lehr, W&B, S3, Ray or the output width.
FOREIGN = re.compile(
    r"LEHR_.*|WANDB_.*|AWS_.*|RAY_.*|(https?|all|no|ftp)_proxy|COLUMNS|LINES", re.IGNORECASE
)
# These configure the tests themselves.
OURS = re.compile(r"LEHR_RENEW_GOLDENS|LEHR_TEST_.*|LEHR_FAULTS_.*")
# A cache outside the session would hide that something no longer compiles.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PROCESSOR_S = "processor_s"
"""The attribute of a report with the processor time of its phase."""
STARTED_AT = pytest.StashKey[float]()
"""The processor time at which the current phase of a test began."""
COLLECTED = pytest.StashKey[dict[str, set[str]]]()
"""The markers of all that was collected, also of what was not selected."""

MAY_SKIP = {
    "tests/platform/cli/test_completion.py::*": "zsh and fish need not be installed",
    "tests/platform/client/test_token.py::test_network_*": "a network namespace needs privileges",
    "tests/repository/test_deploy.py::*systemd*": "a container has no systemd",
    "tests/repository/test_proxy.py::test_caddy_*": "Caddy need not be installed",
    "tests/repository/test_monitoring_files.py::test_prom*": "Prometheus need not be installed",
    "tests/repository/test_monitoring_files.py::test_grafanas_*": "nor Grafana's library",
    "tests/gpu/*": "kernels that not every GPU has",
    "tests/faults/*": "network and pid namespaces and mounts need privileges",
    "tests/trainer/*::test_a_full_disk_*": "mounting a small disk needs root",
    "tests/trainer/runtime/test_distributed.py::test_missing_device_is_a_bad_config*": "there is a GPU",
    "tests/trainer/test_refusals.py::test_config_that_cannot_train_is_refused_before_data_is_prepared*": "there is a GPU",
    "tests/trainer/process/test_failing_runs.py::test_missing_cuda_*": "there is a GPU",
    "tests/e2e/test_up_defaults.py::*": "there is a GPU",
}
"""Node ids of tests that may be skipped where skips fail, and why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lehr")
    group.addoption(
        "--strict-results",
        action="store_true",
        default=bool(os.environ.get("CI")),
        help="Fail on skipped tests that are not in the table of lehr_testing/plugin.py; "
        "on by itself where CI is set",
    )
    ordering.add_options(group)


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
        config.stash[ordering.GROUPS_FILE] = Path(caches, "groups.json")
        for name in CACHES:
            # The workers inherit them.
            os.environ[name] = os.path.join(caches, name.lower())  # noqa: PTH118
        config.pluginmanager.register(Results(config), "lehr-results")


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


# ---------------------------------------------------------------------------------- collection


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    everything = list(items)
    yield
    config.stash[COLLECTED] = {
        item.nodeid: {mark.name for mark in item.iter_markers()} for item in everything
    }
    ordering.sort(config, items)
    if not is_worker(config):
        refuse_equal_ids([item.nodeid for item in items])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if is_worker(session.config):
        ordering.send_groups(session.config.workerinput, session.items)


def refuse_equal_ids(ids: Iterable[str]) -> None:
    """Raise if two tests have the same node id: of those, pytest-xdist runs only one."""
    twice = [name for name, times in Counter(ids).items() if times > 1]
    if twice:
        raise pytest.UsageError(
            f"{len(twice)} node ids belong to several tests each; give them ids of their own: "
            + ", ".join(twice[:5])
        )


# ------------------------------------------------------------------------------------- results


class Results:
    """Compare the selected tests with the results, in the reporting process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.selected: list[str] = []
        self.taken: dict[str, ordering.Taken] = {}
        """Setup, call and teardown together, of each test that has a result."""
        self.missing: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.selected = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Replace the hook above: with pytest-xdist only the workers collect."""
        refuse_equal_ids(ids)
        self.selected = list(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[ordering.GROUPS_INPUT] = str(self.config.stash[ordering.GROUPS_FILE])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return ordering.make_scheduler(config, log)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.taken.get(report.nodeid, ordering.Taken(0, 0))
        self.taken[report.nodeid] = ordering.Taken(
            before.duration + report.duration,
            before.processor + getattr(report, PROCESSOR_S, 0.0),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail when tests have no result, unless the run was cut short on purpose."""
        option = self.config.option
        ended = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if not ended or option.maxfail or option.collectonly or session.shouldstop:
            return
        self.missing = [name for name in self.selected if name not in self.taken]
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if option.write_durations:
            ordering.write_durations(self.taken)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.missing:
            return
        terminalreporter.section("tests without a result", red=True, bold=True)
        terminalreporter.line(
            f"{len(self.missing)} of {len(self.selected)} selected tests have no result:"
        )
        for name in self.missing[:20]:
            terminalreporter.line(f"  {name}")


# --------------------------------------------------------------------------------------- skips


def skip_allowed(nodeid: str) -> bool:
    return any(fnmatchcase(nodeid, pattern) for pattern in MAY_SKIP)


def fail_if_skipped(config: pytest.Config, report: Any) -> None:
    """Turn a skip that is not in ``MAY_SKIP`` into a failure if requested."""
    if not config.getoption("strict_results") or report.outcome != "skipped":
        return
    if hasattr(report, "wasxfail") or skip_allowed(report.nodeid):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = (
        f"{reason}\n{report.nodeid} may not be skipped here: what it needs must be installed, "
        "or it must have a line in MAY_SKIP of tests/lehr_testing/plugin.py."
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[STARTED_AT] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    fail_if_skipped(item.config, report)
    now = processor_s()
    # pytest-xdist sends the attributes of a report along with it.
    setattr(report, PROCESSOR_S, now - item.stash.get(STARTED_AT, now))
    item.stash[STARTED_AT] = now
    return report


def processor_s() -> float:
    """User and system time of this process and of the children it has awaited, in seconds."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    fail_if_skipped(collector.config, report)
    return report


pytest_plugins = ["pytester"]

properties.register_profiles()
