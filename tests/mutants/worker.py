"""Judge mutants: a process with the large imports that forks for each mutant.

``python -m mutants.worker JOB`` reads a job (see ``Job``) and appends one line of JSON for each
mutant to its results. It works on a copy of the sources: the first entries of PYTHONPATH.

A mutant inside of a function costs a fork and the tests that reach it: the fork has all tests
collected, and the function gets the mutated code. A mutant of what runs at import is written into
the copy, and a fork that has not yet imported the package collects the tests anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
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
            found = {f"{SETUP}{_file_of(test)}" for test in of_file - {IMPORTED}}
            if not found:
                found = set(self.seconds)
        passing = (name for name in self.seconds if name not in self.failed)
        wanted = [t for t in passing if t in found or f"{SETUP}{_file_of(t)}" in found]
        return sorted(wanted, key=lambda name: self.seconds[name])


def _file_of(test: str) -> str:
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
        self.coverage.switch_context(f"{SETUP}{_file_of(item.nodeid)}")
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


class Only:
    """A pytest plugin: of all that is collected, these tests in this order."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = {name: place for place, name in enumerate(wanted)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.wanted]
        items[:] = sorted(kept, key=lambda item: self.wanted[item.nodeid])


class Forks:
    """A pytest plugin: after collection, fork for each mutant instead of running the tests."""

    def __init__(self, work: Callable[[Judge], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.work(Judge(session))
        return True


class Judge:
    """All tests collected, all functions of the copy at hand."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self.failed = False
        session.config.pluginmanager.register(self, "judge")
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                self.functions[thing.__code__.co_filename].append(thing)
        _learn_constants()
        gc.collect()
        gc.freeze()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def plant(self, source: bytes, file: str) -> None:
        """Give the functions of a file the code that they have in ``source``."""
        new: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
        for code in _codes(compile(source, file, "exec", dont_inherit=True)):
            new[code.co_qualname, code.co_firstlineno].append(code)
        for function in self.functions[file]:
            old = function.__code__
            found = new.get((old.co_qualname, old.co_firstlineno), [])
            if len(found) == 1 and found[0].co_freevars == old.co_freevars:
                function.__code__ = found[0]

    def run(self, wanted: list[str]) -> int:
        """0 if all pass, 1 at the first that fails."""
        items = [self.items[name] for name in wanted]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0


def judge_all(job: Job) -> None:
    if not job.baseline.exists():
        measure(job)
    baseline = Baseline(**json.loads(job.baseline.read_text()))
    warm, cold = [], []
    for mutant in job.mutants:
        tests = baseline.tests(mutant)
        if not tests:
            _note(job, mutant, "unreached", 0.0, 0)
        else:
            (cold if baseline.at_import(mutant) else warm).append((mutant, tests))
    unsure = job.copy / "unsure"
    """Survivors of lines that ran at import, too: what came of that has no mutant in it."""
    unsure.touch()
    whole = job.copy / "whole"

    def judge_warm(judge: Judge) -> None:
        for mutant, tests in warm:
            file = job.copy / mutant.file
            mutated = mutant.apply(file.read_bytes())

            def attempt(mutated: bytes = mutated, file: Path = file, t: list[str] = tests) -> int:
                judge.plant(mutated, str(file))
                return judge.run(t)

            with planted(file, mutated):
                result = _limited(job, attempt, baseline, tests)
            if result[0] == "survived" and IMPORTED in baseline.reach(mutant):
                with unsure.open("a") as again:
                    again.write(json.dumps(mutant.key) + "\n")
            else:
                _note(job, mutant, *result)
        whole.touch()

    if warm:
        in_fork(lambda: pytest_main(job, Forks(judge_warm), *job.tests), cpu_s=None, wall_s=None)
        if not whole.exists():
            raise SystemExit("the fork that holds the collected tests ended before it was through")
    again = {tuple(json.loads(line)) for line in unsure.read_text().splitlines()}
    for mutant, tests in [*cold, *(pair for pair in warm if pair[0].key in again)]:
        file = job.copy / mutant.file

        def attempt(t: list[str] = tests) -> int:
            return pytest_main(job, Only(t), "-x", *sorted({_file_of(test) for test in t}))

        with planted(file, mutant.apply(file.read_bytes())):
            _note(job, mutant, *_limited(job, attempt, baseline, tests))


def measure(job: Job) -> None:
    """Run the tests once on unchanged code."""

    def attempt() -> int:
        sys.dont_write_bytecode = False  # Of the tests; that of the copy is there already.
        return min(1, int(pytest_main(job, Measure(job), *job.tests)))

    in_fork(attempt, cpu_s=None, wall_s=None)
    if not job.baseline.exists():
        raise SystemExit(f"the tests cannot be run on unchanged code: {job.tests}")


def pytest_main(job: Job, plugin: object, *more: str) -> int:
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "--timeout=0", "-m", "not gpu", *more]
    arguments += [f"--basetemp={job.copy / 'tmp'}"]
    return int(pytest.main(arguments, plugins=[plugin]))


@contextlib.contextmanager
def planted(file: Path, mutated: bytes) -> Iterator[None]:
    """The mutant in the copy, for processes that the tests start; the compiled file set aside."""
    original = file.read_bytes()
    compiled = Path(importlib.util.cache_from_source(str(file)))
    aside = compiled.with_suffix(".aside")
    compiled.rename(aside)
    try:
        file.write_bytes(mutated)
        yield
    finally:
        file.write_bytes(original)
        aside.rename(compiled)


def in_fork(
    function: Callable[[], int], *, cpu_s: float | None, wall_s: float | None
) -> tuple[str, float]:
    """Run it in a child: ``survived`` for 0, ``timeout``, else ``killed``; and the CPU time."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setsid()
            _end_with_parent()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if cpu_s is not None:
                limit = int(cpu_s) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
                _bound_memory()
            if not os.environ.get("MUTANTS_SHOW"):
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(1, 2)
            code = function()
        finally:
            os._exit(code)
    ended = select.poll()
    watch = os.pidfd_open(pid)
    ended.register(watch, select.POLLIN)
    in_time = ended.poll(None if wall_s is None else wall_s * 1000)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # What the tests left running, too.
    _, status, usage = os.wait4(pid, 0)
    os.close(watch)
    code = os.waitstatus_to_exitcode(status)
    seconds = round(usage.ru_utime + usage.ru_stime, 2)
    if not in_time or code in {-signal.SIGXCPU, -signal.SIGKILL}:
        return "timeout", seconds
    return ("killed" if code else "survived"), seconds


def _limited(
    job: Job, attempt: Callable[[], int], baseline: Baseline, tests: list[str]
) -> tuple[str, float, int]:
    """By processor time, so that a loaded machine kills no mutant."""
    cpu_s = 4 * sum(baseline.seconds[test] for test in tests) + job.grace
    return *in_fork(attempt, cpu_s=cpu_s, wall_s=20 * cpu_s + 30), len(tests)


def _end_with_parent() -> None:
    """Be killed when the process that started this one ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _bound_memory() -> None:
    """Two GiB more than there is now: an endless loop may fill a list."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + 2 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _note(job: Job, mutant: Mutant, outcome: str, seconds: float, tests: int) -> None:
    line = {"key": mutant.key, "outcome": outcome, "seconds": seconds, "tests": tests}
    line["stamp"] = job.stamps[mutant.scope]
    with job.results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _learn_constants() -> None:
    """Let Hypothesis read the constants of the sources once, and not in every fork."""

    @hypothesis.given(hypothesis.strategies.integers())
    def nothing(value: int) -> None:
        pass

    nothing()


def limit_examples(most: int) -> None:
    """Few examples, the same each time, and no search for the smallest that fails."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    initial = hypothesis.settings.__init__

    def limited(self: hypothesis.settings, *args: Any, **values: Any) -> None:
        if isinstance(values.get("max_examples"), int):
            values["max_examples"] = min(most, values["max_examples"])
        initial(self, *args, **values)

    hypothesis.settings.__init__ = limited  # type: ignore[method-assign]
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=most,
        phases=phases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")


def main() -> None:
    _end_with_parent()
    job = Job.read(Path(sys.argv[1]))
    sys.dont_write_bytecode = True
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    for name in job.preload:
        importlib.import_module(name)
    early = [s for s in job.sources if any(_is_of(module, job.copy / s) for module in sys.modules)]
    if early:
        raise SystemExit(f"preload imports what is to be mutated: {', '.join(early)}")
    limit_examples(job.examples)
    judge_all(job)


def _is_of(module: str, file: Path) -> bool:
    return getattr(sys.modules[module], "__file__", None) == str(file)


if __name__ == "__main__":
    main()
