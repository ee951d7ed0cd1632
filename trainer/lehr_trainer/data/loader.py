"""Batches of training data: a pure function of the step, and of where the run began.

Think of each epoch's blocks, laid end to end in that epoch's order, as one endless stream of
tokens. It begins at the position of a checkpoint, in tokens. The n-th step from there takes
``tokens_per_step`` tokens from ``n * tokens_per_step`` on, whatever the number of ranks and however
long the sequences are: so a run may resume on another world size, and a schedule that makes
sequences longer neither repeats nor skips a token.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.position import DataPosition
from lehr_trainer.data.shuffle import mix64
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.data.tokenizers import MASKED, token_ids
from lehr_trainer.data.tokens import Loading, open_stream
from lehr_trainer.errors import BadConfig
from lehr_trainer.losses.chunked import IGNORED

MODULUS = 2**52
"""Every digest is below it."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of SplitMix64."""


def sequences_digest(rows: NDArray[Any]) -> int:
    """Return the digest of sequences: the rows of an array of tokens, targets included.

    It shows whether two steps trained on the same sequences. It is a sum over sequences (the
    multiset hash of Clarke et al., ASIACRYPT 2003). So it does not depend on how ranks and
    micro-batches share a step, and ranks need only add their parts. The hash of a sequence is a dot
    product of its tokens with fixed odd numbers, modulo 2**64, and then SplitMix64's finalizer.

    A digest is below 2**52. So a float holds it exactly, as the value of a metric, and the int64
    sum over 2,048 ranks does not overflow.
    """
    length = rows.shape[1]
    # einsum multiplies and adds in one pass, without a copy of the tokens in 64 bits.
    hashes: NDArray[np.uint64] = np.einsum("ij,j->i", rows, _factors(length), dtype=np.uint64)
    hashes = mix64(hashes + np.uint64(length))
    return added(hashes.sum(dtype=np.uint64).item())


def added(*parts: int) -> int:
    """Return the digest of all sequences from the digests of parts of them."""
    return sum(parts) % MODULUS


@lru_cache(maxsize=16)
def _factors(length: int) -> NDArray[np.uint64]:
    """Return the factor of each position: odd, so that a change of one token always shows."""
    positions = np.arange(1, length + 1, dtype=np.uint64)
    return mix64(positions * _GOLDEN) | np.uint64(1)


Place = tuple[int, int]
"""Step and micro-step."""


class _Made(NamedTuple):
    both: Tensor
    """Inputs and targets, [2, B, T]."""
    digest: int
    """Of their sequences."""
    counted: int | None
    """Of a step's first batch: how many of the rank's targets count in the step; None if all."""


class Loader:
    """Makes a rank's batches, some of them ahead of time on ``workers`` threads.

    Threads, not processes: the gather releases the interpreter lock, takes a tenth of a
    millisecond, and needs no copy between processes. ``workers=0`` makes each batch when it is
    requested. Batches may be requested in any order; they are prefetched in order.
    """

    def __init__(
        self,
        prepared: PreparedData,
        batch: BatchConfig,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 1,
        prefetch: int = 4,
        loading: Loading = "auto",
        steps: int | None = None,
        first_step: int = 0,
        position: DataPosition | None = None,
        mask_document_starts: bool = False,
    ) -> None:
        """Open the data from ``position`` on, at ``first_step``; by default at its beginning.

        ``steps`` of the whole run are needed where ``batch.stages`` change the length on the way.
        ``prefetch`` batches are kept ready for each of ``workers`` threads. With
        ``mask_document_starts`` the targets after an end of a document are ``IGNORED``; otherwise
        those that are masked in the prepared data.

        Raises:
            BadConfig: the ranks cannot share the sequences evenly.
            BadData: the corpus is too short, or a shard cannot be read.
        """
        if problem := batch.sharing_problem(world_size):
            raise BadConfig(problem)
        if batch.stages and steps is None:
            raise BadConfig("batch.stages are shares of all steps: the number of steps is missing")
        self._batch, self._steps = batch, steps or 1
        self._block = batch.longest_sequence
        self._rank, self._world_size = rank, world_size
        self._device = torch.device(device)
        if str(self._device) == "cuda":
            # A thread of the pool has a current device of its own, and must be given this one.
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._first_step = first_step
        self.stream = open_stream(prepared, batch, seed, loading, position or DataPosition())
        self._ahead = max(1, workers * prefetch)
        self._pool = ThreadPoolExecutor(workers, "loader", self._enter_thread) if workers else None
        self._ready: deque[tuple[Place, Future[_Made]]] = deque()
        self._eos_id = prepared.eos_id if mask_document_starts else None
        self._prepared_mask = prepared.masked
        self.counted: int | None = None
        """How many of this rank's targets count in a step: in that of the last micro-step 0 that
        was taken. None if nothing is masked."""
        self.waited_s = 0.0
        """Total seconds that callers of ``batch`` have waited."""
        self.digest = 0
        """Digest of this rank's sequences of a step: of those taken since its micro-step 0."""
        self.taken: deque[tuple[int, int, int]] = deque(maxlen=8)
        """Step (from 1), micro-step and ``digest`` of the last batches."""

    def micro_steps(self, step: int = 0) -> int:
        """Count this rank's forward passes in that step."""
        shape = self._batch.at(step, self._steps)
        return shape.sequences // self._world_size // self._micro_batch(shape)

    def batch(self, step: int, micro_step: int = 0) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, int64 [B, T], of step ``step`` (the first is 0).

        Targets are the inputs shifted by one token; those that are masked are ``IGNORED``.
        """
        began = time.perf_counter()
        both, digest, counted = self._take((step, micro_step))
        self.digest = added(self.digest, digest) if micro_step else digest
        self.counted = self.counted if micro_step else counted
        self.taken.append((step + 1, micro_step, self.digest))
        if both.device != self._device:
            both = both.to(self._device, non_blocking=True)
        self.waited_s += time.perf_counter() - began
        return both[0], both[1]

    def epochs(self, step: int) -> dict[str, float]:
        """Return how often the first ``step`` steps pass over the data, by name of metric."""
        return self.stream.epochs(self._blocks_before(step))

    def position(self, step: int) -> DataPosition:
        """Return the position in the data after ``step`` steps."""
        return self.stream.position(self._blocks_before(step))

    def close(self) -> None:
        """Stop the threads. Closing twice is harmless."""
        self._ready.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- which sequences ---------------------------------------------------------------------

    def _blocks_before(self, step: int) -> int:
        return (step - self._first_step) * self._batch.tokens_per_step // self._block

    def _micro_batch(self, shape: BatchConfig) -> int:
        return shape.micro_batch or shape.sequences // self._world_size

    def _rows(self, place: Place) -> NDArray[Any]:
        """Return the tokens of a micro-step with their mask, [B, T + 1]."""
        step, micro_step = place
        shape = self._batch.at(step, self._steps)
        share, micro_batch = shape.sequences // self._world_size, self._micro_batch(shape)
        # This rank's sequences, counted from where the stream begins.
        first = (step - self._first_step) * shape.sequences + self._rank * share
        first += micro_step * micro_batch
        sequences = np.arange(first, first + micro_batch, dtype=np.int64)
        length = shape.sequence_length
        positions, offsets = np.divmod(sequences * length, self._block)
        return self.stream.rows(positions, offsets, length)

    def _masked(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which targets of the rows are masked, [B, T]."""
        if self._eos_id is None:
            masked: NDArray[np.bool_] = rows[:, 1:] >= MASKED
        else:
            masked = rows[:, :-1] == self._eos_id
        return masked

    def _count(self, step: int) -> int:
        """Count this rank's targets of a step that are not masked, before its batches are made."""
        every = (self._rows((step, micro_step)) for micro_step in range(self.micro_steps(step)))
        return sum(int(np.count_nonzero(~self._masked(rows))) for rows in every)

    def _make(self, place: Place) -> _Made:
        """Make the batch in host memory (pinned for CUDA), and its digest."""
        rows = self._rows(place)
        tokens = token_ids(rows) if self._prepared_mask else rows
        both = torch.empty(
            (2, *rows[:, 1:].shape), dtype=torch.int64, pin_memory=self._device.type == "cuda"
        )
        filled = both.numpy()
        filled[0] = tokens[:, :-1]
        filled[1] = tokens[:, 1:]
        counted = None
        if self._prepared_mask or self._eos_id is not None:
            filled[1][self._masked(rows)] = IGNORED
            counted = None if place[1] else self._count(place[0])
        return _Made(both, sequences_digest(tokens), counted)

    # --- ahead of time -----------------------------------------------------------------------

    def _take(self, place: Place) -> _Made:
        if self._pool is None:
            return self._make(place)
        if not self._ready or self._ready[0][0] != place:
            for _, future in self._ready:
                future.cancel()
            self._ready.clear()
            self._submit(place)
        _, future = self._ready.popleft()
        batch = future.result()
        last = self._ready[-1][0] if self._ready else place
        while len(self._ready) < self._ahead:
            step, micro_step = last
            more = micro_step + 1 < self.micro_steps(step)
            last = (step, micro_step + 1) if more else (step + 1, 0)
            self._submit(last)
        return batch

    def _submit(self, place: Place) -> None:
        assert self._pool is not None
        self._ready.append((place, self._pool.submit(self._make, place)))

    def _enter_thread(self) -> None:
        if self._device.type == "cuda":
            # Pinning memory would otherwise open a context on GPU 0 from every rank.
            torch.cuda.set_device(self._device)
