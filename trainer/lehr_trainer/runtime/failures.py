"""Failures of a training run: the cause in a word, the reason in a sentence.

The rank that fails is often not rank 0, which writes the ``finished`` record and would hang in the
next exchange of gradients until somebody kills it. So ranks report failures to each other
(``channel.py``), and rank 0 reports the first cause as the run's.
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr_trainer.errors import BadConfig, DiskFull, TrainerError
from lehr_trainer.runtime.event_stream import NO_SPACE

HANG = "hang"
_NO_COMPILER = ("No working C++ compiler found", "Failed to find C compiler", "cuda_utils.c")
"""Words of Inductor's and Triton's errors. The last is a file that Triton compiles before its first
kernel, which fails without Python's headers."""


@dataclass(frozen=True)
class Failure:
    rank: int
    cause: str
    """nan_loss, out_of_memory, disk_full, bad_config, bad_data, bad_checkpoint, missing_checkpoint,
    peer_lost, gpu_error, hang or error."""
    message: str

    @property
    def named(self) -> Failure:
        """The same, with its rank in the message; that of a hang names ranks already."""
        if self.cause == HANG:
            return self
        return Failure(self.rank, self.cause, f"rank {self.rank}: {self.message}")


class OtherRankFailed(Exception):
    """This rank ends because another rank failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.named.message)
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
    if names & {"DistError", "DistBackendError", "DistNetworkError"} or (
        "gloo" in text and ("Connection" in text or "Timed out" in text)
    ):
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


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"
