"""Control of the rows' processes: on a CPU all take turns, on a GPU they run one by one.

With turns, other work on the machine affects all rows alike. On a GPU not all could hold their
memory at once; nobody shares the GPU, so one after the other is fair.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is documented.

from lehr_trainer.callbacks import LogFn
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.worker import serve

WARM_UP_STEPS = 2
_LEAVING_S = 10.0
NO_ANSWER = "no answer within"
_PRELOADED = [
    # The first optimizer step imports the compiler, which takes as long as torch itself.
    "torch._dynamo",
    *(
        f"lehr_trainer.experiments.bench_{kind}"
        for kind in ("training", "loss", "batches", "parts")
    ),
]


@dataclass
class RowOutcome:
    """Result of a case; ``error`` is the reason why there are no figures."""

    case: Case
    error: str = ""
    failed: bool = False
    """Whether the error is none that the machine explains: a program that is wrong, or a hang."""
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
    """A case's worker processes, one for each rank. Errors and timeouts become ``RowFailed``."""

    def __init__(self, case: Case, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Forked from a process that has only imported torch: an import takes seconds of a core,
        # and there are a dozen rows.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        # Held by this process, as torchrun does: a port that is only looked up can be taken
        # before rank 0 listens.
        self._store = TCPStore("127.0.0.1", 0, is_master=True) if case.ranks > 1 else None
        port = None if self._store is None else self._store.port
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        for rank in range(case.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(case, theirs, rank, port), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give an order to all ranks; return the answer of rank 0, or raise the first error."""
        answers: dict[Connection, dict[str, Any]] = {}
        end = time.monotonic() + self._timeout_s
        try:
            for pipe in self._processes:
                pipe.send({"do": do, **order})
        except ConnectionError:
            pass  # It has ended; reading finds out how.
        while waiting := self._processes.keys() - answers.keys():
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                raise RowFailed(f"{NO_ANSWER} {self._timeout_s:.0f} s")
            for pipe in self._processes.keys() & set(ready):
                answers[pipe] = self._receive(pipe)
        return answers[next(iter(self._processes))]

    def _receive(self, pipe: Connection) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = pipe.recv()
        except (EOFError, ConnectionError):
            process = self._processes[pipe]
            process.join()
            raise RowFailed(f"its process ended with code {process.exitcode}") from None
        if "error" in answer:
            raise RowFailed(answer["error"], expected=answer["expected"])
        return answer

    def end(self) -> None:
        """End the processes: close the pipes, then kill if needed. Ending twice is harmless."""
        for pipe in self._processes:
            pipe.close()
        end = time.monotonic() + _LEAVING_S
        for process in self._processes.values():
            process.join(max(0.0, end - time.monotonic()))
            process.kill()
            process.join()
        self._store = None


class RowFailed(Exception):
    """A row failed; the message is the reason in one line.

    ``expected``: the machine or a library is too small or absent, as the message states.
    """

    def __init__(self, message: str, *, expected: bool = False) -> None:
        super().__init__(message)
        self.expected = expected


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
            outcome.error, outcome.failed = str(failed), not failed.expected
            log(f"{outcome.case.name}: {failed}")
            processes[outcome.case.name].end()

    def prepare(outcome: RowOutcome) -> None:
        log(f"{outcome.case.name}: setting up")

        warm_up = 1 if outcome.case.slow else WARM_UP_STEPS

        def setup(process: BenchProcess) -> None:
            answer = process.ask("setup", warm_up=warm_up, launches=launches)
            outcome.setup_s = answer["seconds"]

        attempt(outcome, setup)

    def turn(outcome: RowOutcome) -> None:
        if outcome.case.slow and outcome.seconds:
            return

        def work(process: BenchProcess) -> None:
            answer = process.ask("turn", steps=1 if outcome.case.slow else steps)
            outcome.seconds.append(answer["seconds"])
            outcome.cpu_seconds.append(answer["cpu_seconds"])

        attempt(outcome, work)

    def ask_facts(outcome: RowOutcome) -> None:
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
            ask_facts(outcome)
            processes[outcome.case.name].end()
    finally:
        for process in processes.values():
            process.end()
