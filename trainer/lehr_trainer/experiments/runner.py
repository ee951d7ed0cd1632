"""Control of the rows' processes: on a CPU all take turns, on a GPU they run one by one.

With turns, other work on the machine affects all rows alike. On a GPU not all could hold their
memory at once; nobody shares the GPU, so one after the other is fair.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lehr_trainer.callbacks import LogFn
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.worker import serve

WARM_UP_STEPS = 2
_LEAVING_S = 10.0
NO_ANSWER = "no answer within"
_PRELOADED = [
    # The first optimizer step imports the compiler, which takes as long as torch itself.
    "torch._dynamo",
    *(f"lehr_trainer.experiments.bench_{kind}" for kind in ("training", "loss", "batches")),
]


@dataclass
class RowOutcome:
    """Result of a case; ``error`` says why there are no figures."""

    case: Case
    error: str = ""
    setup_s: float | None = None
    seconds: list[float] = field(default_factory=list)
    """Seconds a step, for each turn."""
    cpu_seconds: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def step_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and not self.error else None

    @property
    def cpu_s(self) -> float | None:
        return statistics.median(self.cpu_seconds) if self.cpu_seconds and not self.error else None

    @property
    def note(self) -> str:
        return self.error or self.case.note

    def fact(self, name: str) -> Any:
        return None if self.error else self.facts.get(name)

    def loss_after(self, steps: int) -> float | None:
        losses = self.fact("losses")
        return losses[steps - 1] if losses else None


class BenchProcess:
    """One worker process. Errors and timeouts become ``RowFailed``."""

    def __init__(self, case: Case, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Forked from a process that has only imported torch: an import takes seconds of a core,
        # and there are a dozen rows.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(case, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        try:
            self._pipe.send({"do": do, **order})
            if not self._pipe.poll(self._timeout_s):
                raise RowFailed(f"{NO_ANSWER} {self._timeout_s:.0f} s")
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise RowFailed(f"its process ended with code {self._process.exitcode}") from None
        if "error" in answer:
            raise RowFailed(answer["error"])
        return answer

    def end(self) -> None:
        """End the process: close its pipe, then kill it if needed. Ending twice is harmless."""
        self._pipe.close()
        self._process.join(_LEAVING_S)
        self._process.kill()
        self._process.join()


class RowFailed(Exception):
    """A row failed; the message says why in one line."""


def measure(
    cases: Iterable[Case],
    *,
    turns: int,
    steps: int,
    together: bool,
    log: LogFn,
    launches: bool = False,
    timeout_s: float = 600.0,
) -> list[RowOutcome]:
    """Measure every case, in order; a case that fails carries its error and stops no other.

    Args:
        cases: those with ``skip`` start no process.
        turns: how often each works.
        steps: in a turn.
        together: whether all live at once and take turns.
        log: prints progress.
        launches: also count kernels.
        timeout_s: how long to wait for one answer.
    """
    outcomes = [RowOutcome(case, error=case.skip) for case in cases]
    alive = [outcome for outcome in outcomes if not outcome.error]
    for group in [alive] if together else [[one] for one in alive]:
        _measure(group, turns, steps, log, launches=launches, timeout_s=timeout_s)
    return outcomes


def _measure(
    group: list[RowOutcome],
    turns: int,
    steps: int,
    log: LogFn,
    *,
    launches: bool,
    timeout_s: float,
) -> None:
    processes: dict[str, BenchProcess] = {}

    def attempt(outcome: RowOutcome, act: Callable[[BenchProcess], None]) -> None:
        if outcome.error:
            return
        try:
            act(processes[outcome.case.name])
        except RowFailed as failed:
            outcome.error = str(failed)
            log(f"{outcome.case.name}: {failed}")
            processes[outcome.case.name].end()

    def prepare(outcome: RowOutcome) -> None:
        log(f"{outcome.case.name}: setting up")

        warm_up = 1 if outcome.case.slow else WARM_UP_STEPS

        def setup(process: BenchProcess) -> None:
            outcome.setup_s = process.ask("setup", warm_up=warm_up)["seconds"]

        attempt(outcome, setup)

    def turn(outcome: RowOutcome) -> None:
        if outcome.case.slow and outcome.seconds:
            return

        def work(process: BenchProcess) -> None:
            answer = process.ask("turn", steps=1 if outcome.case.slow else steps)
            outcome.seconds.append(answer["seconds"])
            outcome.cpu_seconds.append(answer["cpu_seconds"])

        attempt(outcome, work)

    def tell(outcome: RowOutcome) -> None:
        def ask(process: BenchProcess) -> None:
            outcome.facts = process.ask("facts", launches=launches)

        attempt(outcome, ask)

    try:
        # All start at once; then one sets up after another.
        for outcome in group:
            processes[outcome.case.name] = BenchProcess(outcome.case, timeout_s)
        for outcome in group:
            prepare(outcome)
        for number in range(turns):
            log(f"turn {number + 1} of {turns}")
            for outcome in group:
                turn(outcome)
        for outcome in group:
            tell(outcome)
            processes[outcome.case.name].end()
    finally:
        for process in processes.values():
            process.end()
