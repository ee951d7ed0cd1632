"""Judge mutants: a process with the large imports that forks for each mutant.

``python -m mutants.worker JOB`` reads a job (see ``Job``) and appends one line of JSON for each
mutant to its results. It works on a copy of the sources: the first entries of PYTHONPATH.

A mutant inside of a function costs a fork and the tests that reach it: the fork has all tests
collected, and the function gets the mutated code. A mutant of what runs at import is written into
the copy, and a fork that has not yet imported the package collects the tests again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import hypothesis
import pytest

from mutants.baseline import IMPORTED, Baseline, Job, Measure, file_of
from mutants.forks import end_with_parent, in_fork
from mutants.generate import Mutant


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
            return pytest_main(job, Only(t), "-x", *sorted({file_of(test) for test in t}))

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


def _limited(
    job: Job, attempt: Callable[[], int], baseline: Baseline, tests: list[str]
) -> tuple[str, float, int]:
    """By processor time, so that a loaded machine kills no mutant."""
    cpu_s = 4 * sum(baseline.seconds[test] for test in tests) + job.grace
    return *in_fork(attempt, cpu_s=cpu_s, wall_s=20 * cpu_s + 30), len(tests)


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
    end_with_parent()
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
