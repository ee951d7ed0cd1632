"""The held-out set: the same tokens in the same order for every run, step and world size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.errors import BadData


class ValidationSet:
    """Sequences end to end over the first held-out tokens; each token is scored once.

    A rank takes every ``world_size``-th sequence. Sum the losses and the counts over all ranks,
    then divide: batches may differ in size.
    """

    def __init__(
        self,
        prepared: PreparedData,
        sequence_length: int,
        tokens: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        micro_batch: int = 8,
        device: torch.device | str = "cpu",
        padded: bool = False,
    ) -> None:
        """Map the held-out tokens.

        Args:
            prepared: the corpus, or the mix.
            sequence_length: of each scored sequence.
            tokens: how many to score, at most.
            rank: this process's.
            world_size: how many ranks share the sequences.
            micro_batch: sequences of a batch.
            device: where batches go.
            padded: give all batches of all ranks one shape, so that compiled code has one graph.

        Raises:
            BadData: there is less than one sequence.
        """
        self.sequences = min(tokens, prepared.validation_tokens) // sequence_length
        """Number of sequences, over all ranks."""
        self.tokens = self.sequences * sequence_length
        """Number of scored tokens, over all ranks."""
        self.digest = prepared.validation_digest
        if self.sequences == 0:
            raise BadData(
                f"the held-out set has {prepared.validation_tokens:,} tokens to score, fewer than "
                f"one sequence of {sequence_length:,}; raise validation.share or take a larger "
                "corpus"
            )
        held_out = prepared.held_out
        seen = held_out.tokens[: self.tokens + 1]
        windows = sliding_window_view(seen, sequence_length + 1)[::sequence_length]
        self._rows = windows[rank::world_size]
        document = np.repeat(np.arange(len(held_out.lengths)), held_out.lengths)
        targets = document[1 : self.tokens + 1].reshape(self.sequences, sequence_length)
        self.documents = targets[rank::world_size].ravel()
        """The document of each of this rank's targets, in the order of the batches."""
        self.targets = np.bincount(targets.ravel(), minlength=len(held_out.lengths))
        """Number of targets of each document, over all ranks."""
        self._micro_batch = micro_batch
        most_of_a_rank = -(-self.sequences // world_size)
        self._padded_rows = min(micro_batch, most_of_a_rank) if padded else 0
        self._device = torch.device(device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's inputs and targets, int64 [B, T]; the last batch may be smaller.

        If batches are padded, inputs can have more rows than targets; what comes of these rows is
        not scored.
        """
        for first in range(0, len(self._rows), self._micro_batch):
            rows = self._rows[first : first + self._micro_batch].astype(np.int64)
            scored = len(rows)
            if scored < self._padded_rows:
                rows = np.concatenate([rows, rows[:1].repeat(self._padded_rows - scored, axis=0)])
            both = torch.from_numpy(np.stack([rows[:, :-1], rows[:, 1:]])).to(self._device)
            yield both[0], both[1][:scored]
