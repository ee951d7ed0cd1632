"""Ways to make a batch out of token shards: the usual first attempts, and the loader.

All give the same windows at the same step, so that trainings over them see the same tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lehr_trainer.configs.train import BatchConfig, TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.data import Loader, PreparedData, prepare_dataset
from lehr_trainer.data.shuffle import Passes, SampleOrder
from lehr_trainer.data.tokens import TrainTokens
from lehr_trainer.diagnostics.diagnostics_logger import Batch
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.train import MicroBatches

Make = Callable[[int], Any]
"""Makes the batch of a step."""


def prepared_text(config: TrainConfig, root: Path | None = None) -> PreparedData:
    """Return the config's corpus as shards; prepare it if that has not been done before."""
    return prepare_dataset(
        config.data,
        config.validation,
        config.model.vocab_size,
        root or layout.data_root(),
        lambda _phase, _message, _done: None,
    )


def naive(tokens: NDArray[Any], starts: Callable[[int], NDArray[np.int64]], length: int) -> Make:
    """Build a Python list of slices and pass it to ``torch.tensor``."""
    warnings.filterwarnings("ignore", message="Creating a tensor from a list")

    def make(step: int) -> Tensor:
        batch = []
        for start in starts(step):
            batch.append(tokens[start : start + length])  # noqa: PERF401 - the naive loop is the subject
        return torch.tensor(batch)

    return make


def stacked(tokens: NDArray[Any], starts: Callable[[int], NDArray[np.int64]], length: int) -> Make:
    """Stack slices with ``np.stack``, without a second copy."""

    def make(step: int) -> Tensor:
        return torch.from_numpy(np.stack([tokens[s : s + length] for s in starts(step)]))

    return make


class Windows:
    """Start positions of the loader's sequences, in the only shard of a small corpus."""

    def __init__(self, prepared: PreparedData, batch: BatchConfig, seed: int) -> None:
        data = TrainTokens.open(prepared, "memmap", batch.sequence_length)
        if len(data.shards) != 1:
            raise ValueError(f"this comparison needs one shard; there are {len(data.shards)}")
        self.mapped: NDArray[Any] = np.memmap(data.names[0], dtype=prepared.dtype, mode="r")
        self.path = Path(data.names[0])
        self._order = SampleOrder(Passes(seed, data.blocks))
        self._batch = batch

    def starts(self, step: int) -> NDArray[np.int64]:
        count = self._batch.sequences
        blocks = self._order.blocks(step * count, (step + 1) * count - 1)
        return blocks * self._batch.sequence_length

    def in_memory(self) -> NDArray[Any]:
        return np.fromfile(self.path, dtype=self.mapped.dtype)


def maker(kind: str, prepared: PreparedData, batch: BatchConfig, seed: int) -> Make:
    """Build ``naive_memmap``, ``naive_preload`` or ``stack``; each makes one tensor [B, T + 1]."""
    windows = Windows(prepared, batch, seed)
    tokens = windows.mapped if kind == "naive_memmap" else windows.in_memory()
    make = stacked if kind == "stack" else naive
    return make(tokens, windows.starts, batch.sequence_length + 1)


class WholeSteps:
    """Micro-batches for a ``TrainStep``; those of a step are made together, before its first."""

    def __init__(self, make: Callable[[int], Sequence[Batch]], micro_steps: int) -> None:
        self._make, self._micro_steps = make, micro_steps
        self._made: Sequence[Batch] = ()

    def micro_steps(self, _step: int) -> int:
        return self._micro_steps

    def batch(self, step: int, micro_step: int) -> Batch:
        if micro_step == 0:
            self._made = self._make(step)
        return self._made[micro_step]


EOS = 0
"""The token that ends a document, where random batches have documents."""
_DOCUMENT = 512
"""Mean length of these documents."""


def step_batches(
    kind: str, config: TrainConfig, device: torch.device, ranks: Ranks
) -> MicroBatches:
    """Build the batches of one kind, on the device; of random ones, this rank's share."""
    batch = config.batch
    sequences = batch.sequences // ranks.world_size
    micro = batch.micro_batch or sequences
    micro_steps = sequences // micro
    if kind == "random":
        generator = torch.Generator(device).manual_seed(config.seed + ranks.rank)
        shape = (sequences, batch.sequence_length)

        def draw(_step: int) -> list[Batch]:
            high = config.model.vocab_size
            tokens = torch.randint(0, high, shape, generator=generator, device=device)
            if config.attention.document_masking:
                ends = torch.rand(shape, generator=generator, device=device) < 1 / _DOCUMENT
                tokens.masked_fill_(ends, EOS)
            return [(part, part) for part in torch.split(tokens, micro)]

        return WholeSteps(draw, micro_steps)
    prepared = prepared_text(config)
    if kind == "loader":
        return Loader(
            prepared,
            batch,
            seed=config.seed,
            device=device,
            workers=config.data.workers,
            loading="preload",
        )
    make = maker(kind, prepared, batch, config.seed)

    def cut(step: int) -> list[Batch]:
        rows = make(step).long().to(device)
        return [(part[:, :-1], part[:, 1:]) for part in torch.split(rows, micro)]

    return WholeSteps(cut, micro_steps)
