"""Control of the rows' processes: on a CPU those of a table take turns, on a GPU none does.

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
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.experiments.worker import serve

_LEAVING_S = 10.0
NO_ANSWER = "no answer within"
_PRELOADED = [
    # The first optimizer step imports the compiler, which takes as long as torch itself.
    "torch._dynamo",
    "lehr_trainer.experiments.training",
]


@dataclass
class RowOutcome:
    """What was measured of a row; ``error`` is the reason why there are no figures."""

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


class BenchProcess:
    """A row's worker processes, one for each rank. Errors and timeouts become ``RowFailed``."""

    def __init__(self, row: BenchRow, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Forked from a process that has only imported torch: an import takes seconds of a core,
        # and there are a dozen rows.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        # Held by this process, as torchrun does: a port that is only looked up can be taken
        # before rank 0 listens.
        self._store = TCPStore("127.0.0.1", 0, is_master=True) if row.ranks > 1 else None
        port = None if self._store is None else self._store.port
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        for rank in range(row.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(row, theirs, rank, port), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process

    def ask(self, do: str, steps: int = 0) -> dict[str, Any]:
        """Give an order to all ranks; return the answer of rank 0, or raise the first error."""
        answers: dict[Connection, dict[str, Any]] = {}
        end = time.monotonic() + self._timeout_s
        try:
            for pipe in self._processes:
                pipe.send((do, steps))
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
    rows: Iterable[BenchRow], *, turns: int, steps: int, log: LogFn, timeout_s: float = 600.0
) -> list[RowOutcome]:
    """Measure rows that take turns; one that fails has its error and stops no other.

    Args:
        rows: all live at once.
        turns: how often each works.
        steps: in a turn.
        log: prints progress.
        timeout_s: how long to wait for one answer.
    """
    outcomes = [(row, RowOutcome()) for row in rows]
    processes: dict[str, BenchProcess] = {}

    def in_turn(act: Callable[[BenchProcess, RowOutcome], None]) -> None:
        for row, outcome in outcomes:
            if outcome.error:
                continue
            try:
                act(processes[row.key], outcome)
            except RowFailed as failed:
                outcome.error, outcome.failed = str(failed), not failed.expected
                log(f"{row.name}: {failed}")
                processes[row.key].end()

    def prepare(process: BenchProcess, outcome: RowOutcome) -> None:
        outcome.setup_s = process.ask("setup")["seconds"]

    def work(process: BenchProcess, outcome: RowOutcome) -> None:
        answer = process.ask("turn", steps)
        outcome.seconds.append(answer["seconds"])
        outcome.cpu_seconds.append(answer["cpu_seconds"])

    def report(process: BenchProcess, outcome: RowOutcome) -> None:
        outcome.facts = process.ask("facts")
        process.end()

    try:
        # All start at once; then one sets up after another.
        for row, _ in outcomes:
            processes[row.key] = BenchProcess(row, timeout_s)
        log(f"setting up {', '.join(row.name for row, _ in outcomes)}")
        in_turn(prepare)
        for number in range(turns):
            log(f"turn {number + 1} of {turns}")
            in_turn(work)
        in_turn(report)
    finally:
        for process in processes.values():
            process.end()
    return [outcome for _, outcome in outcomes]
