"""One row's process: it obeys orders that come through a pipe, and answers.

``setup`` builds and warms up, ``turn`` takes some steps and returns their time, ``facts`` returns
everything else. In between it sleeps, so that several can take turns. It ends with its parent,
since the pipe then closes.
"""

from __future__ import annotations

import os
import select
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
import torch._dynamo  # the first optimizer step needs it; importing it is no part of a row's set-up
import torch.distributed as dist

from lehr_trainer.errors import TrainerError
from lehr_trainer.experiments.bench_batches import BatchesSubject
from lehr_trainer.experiments.bench_loss import LossSubject
from lehr_trainer.experiments.bench_parts import PartsSubject
from lehr_trainer.experiments.bench_training import TrainingSubject
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.launches import name_generated_kernels


class BenchSubject(Protocol):
    """The object that is measured."""

    device: torch.device

    def steps(self, count: int) -> None: ...

    def facts(self, asked: dict[str, Any]) -> dict[str, Any]: ...


def build(case: Case) -> BenchSubject:
    if case.kind == "loss":
        return LossSubject(case)
    if case.kind == "batches":
        return BatchesSubject(case)
    if case.kind == "parts":
        return PartsSubject(case)
    return TrainingSubject(case)


class RowWorker:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._subject: BenchSubject | None = None

    @property
    def subject(self) -> BenchSubject:
        assert self._subject is not None, "setup comes first"
        return self._subject

    def setup(self, order: dict[str, Any]) -> dict[str, Any]:
        """Build, and take the steps that compile, allocate and fill caches."""
        if order.get("launches"):
            name_generated_kernels()
        began = time.perf_counter()
        self._subject = build(self._case)
        self._take(int(order["warm_up"]))
        if self.subject.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.subject.device)
        return {"seconds": time.perf_counter() - began}

    def turn(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds a step: by the clock, and of processor time over all threads."""
        count = int(order["steps"])
        began = time.perf_counter(), time.process_time()
        self._take(count)
        return {
            "seconds": (time.perf_counter() - began[0]) / count,
            "cpu_seconds": (time.process_time() - began[1]) / count,
        }

    def facts(self, order: dict[str, Any]) -> dict[str, Any]:
        return self.subject.facts(order)

    def _take(self, count: int) -> None:
        self.subject.steps(count)
        if self.subject.device.type == "cuda":
            torch.cuda.synchronize(self.subject.device)


def serve(case: Case, pipe: Connection, rank: int = 0, port: int | None = None) -> None:
    """Serve orders until the other end is closed.

    Args:
        case: what to measure.
        pipe: brings orders and takes answers.
        rank: this process's number, if the case has several.
        port: where the ranks meet on this machine.
    """
    if port is not None:
        os.environ |= launched(rank, case.ranks, port)
    threading.Thread(target=end_after, args=(pipe,), daemon=True).start()
    # Output of libraries must not mix with the table.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    worker = RowWorker(case)
    acts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "setup": worker.setup,
        "turn": worker.turn,
        "facts": worker.facts,
    }
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            if dist.is_initialized():
                dist.destroy_process_group()
            return
        try:
            answer = acts[order["do"]](order)
        except Exception as error:  # noqa: BLE001 - a row that fails has its error; the others go on
            expected = isinstance(error, TrainerError | torch.OutOfMemoryError)
            answer = {"error": _named(error), "expected": expected}
        pipe.send(answer)


def end_after(pipe: Connection, grace_s: float = 5.0) -> None:
    """End this process soon after the other end of ``pipe`` is closed, whatever it does then.

    A bench killed while a row compiles would otherwise leave the row on the GPU for minutes.
    """
    watched = select.poll()
    watched.register(pipe.fileno(), 0)  # Only hang-ups, so that no message is read here.
    watched.poll()
    time.sleep(grace_s)
    os._exit(1)


def launched(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The store that the ranks meet at is the parent's: rank 0 makes none.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _named(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return first if isinstance(error, TrainerError) else f"{type(error).__name__}: {first}"
