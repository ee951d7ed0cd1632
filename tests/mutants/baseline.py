"""What a worker is asked to judge, and which test reaches which line of unchanged code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from mutants.generate import Mutant

IMPORTED = ""
"""coverage.py's name for what ran outside of any test: at import, or while tests were collected."""
SETUP = "setup of "
"""Before the name of a test file: what its fixtures reached."""


@dataclass
class Job:
    copy: Path
    """Folder of the copied sources, under the paths that they have in the repository."""
    sources: list[str]
    tests: list[str]
    preload: list[str]
    examples: int
    """Most examples of a property test."""
    baseline: Path
    """Where to keep which test reaches which line, and its processor time; made if missing."""
    results: Path
    stamps: dict[str, list[str]]
    """Scope of a mutant -> what a result is valid for."""
    mutants: list[Mutant]
    grace: float = 5
    """Seconds of processor time that a mutant may take beyond four times its tests'."""

    @classmethod
    def read(cls, path: Path) -> Job:
        values = json.loads(path.read_text())
        values |= {name: Path(values[name]) for name in ("copy", "baseline", "results")}
        values["mutants"] = [Mutant.from_json(one) for one in values["mutants"]]
        return cls(**values)


@dataclass
class Baseline:
    """Results of the tests on unchanged code."""

    seconds: dict[str, float]
    failed: list[str]
    reached: dict[str, dict[str, list[str]]]
    """File -> line -> tests; ``setup of FILE`` means all tests of a test file."""

    def reach(self, mutant: Mutant) -> set[str]:
        lines = self.reached.get(mutant.file, {})
        first, last = mutant.statement
        return {test for line in range(first, last + 1) for test in lines.get(str(line), ())}

    def at_import(self, mutant: Mutant) -> bool:
        """Whether the line runs only when modules are imported or tests collected."""
        return mutant.at_import or self.reach(mutant) == {IMPORTED}

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that reach the mutant, the quickest first."""
        found = self.reach(mutant)
        if self.at_import(mutant):  # Who uses a value leaves no trace: whole test files, then.
            of_file = {t for tests in self.reached.get(mutant.file, {}).values() for t in tests}
            found = {f"{SETUP}{file_of(test)}" for test in of_file - {IMPORTED}}
            if not found:
                found = set(self.seconds)
        passing = (name for name in self.seconds if name not in self.failed)
        wanted = [t for t in passing if t in found or f"{SETUP}{file_of(t)}" in found]
        return sorted(wanted, key=lambda name: self.seconds[name])


def file_of(test: str) -> str:
    return test.removeprefix(SETUP).partition("::")[0]


class Measure:
    """A pytest plugin: which test reaches which line of the copy, and how long each takes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        sources = [f"{job.copy}/{source}" for source in job.sources]
        self.coverage = coverage.Coverage(data_file=None, include=sources, config_file=False)
        self.coverage.start()
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        # What a fixture reaches may count for all tests that share it.
        self.coverage.switch_context(f"{SETUP}{file_of(item.nodeid)}")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        reached = {
            str(Path(file).relative_to(self.job.copy)): data.contexts_by_lineno(file)
            for file in sorted(data.measured_files())
        }
        found = Baseline(self.seconds, self.failed, reached)
        self.job.baseline.write_text(json.dumps(vars(found)))
