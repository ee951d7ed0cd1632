"""One row's process: it obeys orders that come through a pipe, and answers.

The first order builds and warms up, ``turn`` takes some steps and returns their time, ``facts``
returns everything else. In between it sleeps, so that several can take turns. It ends with its
parent, since the pipe then closes.
"""

from __future__ import annotations

import os
import select
import threading
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # the first optimizer step needs it; importing it is no part of a row's set-up
import torch.distributed as dist

from lehr_trainer.errors import TrainerError
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.experiments.training import BenchTraining


def serve(row: BenchRow, pipe: Connection, rank: int = 0, port: int | None = None) -> None:
    """Serve orders until the other end is closed.

    Args:
        row: what to measure.
        pipe: brings orders and takes answers.
        rank: this process's number, if the row has several.
        port: where the ranks meet on this machine.
    """
    if port is not None:
        os.environ |= launched(rank, row.ranks, port)
    threading.Thread(target=end_after, args=(pipe,), daemon=True).start()
    # Output of libraries must not mix with the table.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    training: BenchTraining | None = None
    while True:
        try:
            order, steps = pipe.recv()
        except EOFError:
            if dist.is_initialized():
                dist.destroy_process_group()
            return
        try:
            if training is None:
                began = time.perf_counter()
                training = BenchTraining(row.config)
                answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
            else:
                answer = training.turn(steps) if order == "turn" else training.facts()
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
