"""Failures of a training run: the cause in a word, the reason in a sentence.

The rank that fails is often not rank 0, which writes the ``finished`` record and would hang in the
next exchange of gradients until somebody kills it. So a failing rank leaves a note in the attempt's
folder. The others watch for it, and rank 0 reports that cause as the run's.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lehr_trainer.errors import BadConfig, DiskFull, TrainerError
from lehr_trainer.files import open_regular, write_atomically
from lehr_trainer.runtime.event_stream import NO_SPACE

_LOOK_EVERY_S = 0.5
_WAIT_FOR_NOTES_S = 3.0
_NO_COMPILER = ("No working C++ compiler found", "Failed to find C compiler", "cuda_utils.c")
"""Words of Inductor's and Triton's errors. The last is a file that Triton compiles before its first
kernel, which fails without Python's headers."""


@dataclass(frozen=True)
class Failure:
    rank: int
    cause: str
    """nan_loss, out_of_memory, disk_full, bad_config, bad_data, bad_checkpoint, missing_checkpoint,
    peer_lost, gpu_error or error."""
    message: str


class OtherRankFailed(Exception):
    """This rank ends because another rank failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"rank {failure.rank}: {failure.message}")
        self.failure = failure


def explain(error: BaseException, rank: int) -> Failure:
    if isinstance(error, OtherRankFailed):
        return Failure(error.failure.rank, error.failure.cause, str(error))
    text = str(error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, TrainerError):
        return Failure(rank, error.cause, text)
    if (
        isinstance(error, MemoryError)
        or "OutOfMemoryError" in names
        or "can't allocate memory" in text
    ):
        return Failure(
            rank,
            "out_of_memory",
            f"out of memory: {_first_line(text)} A smaller batch.micro_batch trains the same "
            "steps in less memory",
        )
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return Failure(rank, DiskFull.cause, f"no space left: {text}")
    if names & {"DistError", "DistBackendError", "DistNetworkError"} or _lost_peer(text):
        return Failure(rank, "peer_lost", f"another rank has ended: {_first_line(text)}")
    if any(words in text for words in _NO_COMPILER):
        return Failure(
            rank,
            BadConfig.cause,
            "torch.compile needs a C and a C++ compiler and Python's headers on this machine: "
            "install them (apt-get install gcc g++ python3-dev), or set compile.scope: none, which "
            f"is slower ({_first_line(text)})",
        )
    if "AcceleratorError" in names or "CUDA error" in text:
        return Failure(rank, "gpu_error", _first_line(text))
    return Failure(rank, "error", f"{type(error).__name__}: {_first_line(text)}")


def _lost_peer(text: str) -> bool:
    return "gloo" in text and ("Connection" in text or "Timed out" in text)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"


def _note_path(attempt_dir: Path, rank: int) -> Path:
    return attempt_dir / f"failure-rank-{rank}.json"


def leave_note(attempt_dir: Path, failure: Failure) -> None:
    path = _note_path(attempt_dir, failure.rank)
    with contextlib.suppress(OSError):  # The finished record and the log have it too.
        write_atomically(path, json.dumps(asdict(failure)))


def notes(attempt_dir: Path) -> list[Failure]:
    """List the notes, oldest first, so that consequences of another failure come later."""
    found: list[tuple[int, Failure]] = []
    for path in attempt_dir.glob("failure-rank-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError), open_regular(path) as file:
            found.append((path.stat().st_mtime_ns, Failure(**json.loads(file.read()))))
    return [failure for _, failure in sorted(found, key=lambda pair: pair[0])]


def root_cause(attempt_dir: Path, own: Failure, *, wait: bool) -> Failure:
    """Choose the failure to report: another rank's, if ours only reports that one as lost.

    ``wait``: there are other ranks, whose note may still be on its way.
    """
    if own.cause != "peer_lost" or not wait:
        return own
    deadline = time.monotonic() + _WAIT_FOR_NOTES_S
    while time.monotonic() < deadline:
        for failure in notes(attempt_dir):
            if failure.cause != "peer_lost":
                return Failure(
                    failure.rank, failure.cause, f"rank {failure.rank}: {failure.message}"
                )
        time.sleep(0.1)
    return own


def watch_others(
    attempt_dir: Path, rank: int, report: Callable[[Failure], None]
) -> Callable[[], None]:
    """Start a thread that ends this process when another rank has failed.

    A rank that waits inside NCCL for one that is gone runs no Python and sees no signal; with
    a shutdown timeout that leaves time for a save, it would hold its GPU for minutes.

    Returns:
        What ends the thread: once this rank is done, no other's failure is its own.
    """
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_EVERY_S):
            others = [one for one in notes(attempt_dir) if one.rank != rank]
            # This process's main thread may be about to fail of it too, with a better message.
            if others and not done.wait(_WAIT_FOR_NOTES_S + 1):
                first = others[0]
                report(Failure(first.rank, first.cause, f"rank {first.rank}: {first.message}"))
                os._exit(1)

    thread = threading.Thread(target=look, name="watch-others", daemon=True)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop
