"""Validation: the held-out set, in fixed order and precision, for every run and world size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.errors import BadData
from lehr_trainer.losses.chunked import token_losses
from lehr_trainer.losses.variants import FAST_ROWS
from lehr_trainer.models.documents import InputFn
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.runtime import sharding
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision


class ValidationSet:
    """Sequences end to end over the first held-out tokens; each token is scored once, if it counts.

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
        """Map the held-out tokens, of which at most ``tokens`` are read.

        ``padded``: give all batches of all ranks one shape, so that compiled code has one graph.

        Raises:
            BadData: there is less than one sequence, or no token counts.
        """
        self.sequences = min(tokens, prepared.validation_tokens) // sequence_length
        """Number of sequences, over all ranks."""
        self.digest = prepared.validation_digest
        self.bytes_per_token = prepared.bytes_per_token
        self.sources = prepared.held_out.sources
        if self.sequences == 0:
            raise BadData(
                f"the held-out set has {prepared.validation_tokens:,} tokens to score, fewer than "
                f"one sequence of {sequence_length:,}; raise validation.share or take a larger "
                "corpus"
            )
        held_out = prepared.held_out
        most = self.sequences * sequence_length
        counted = held_out.counted[1 : most + 1]
        self.tokens = int(np.count_nonzero(counted))
        """Number of scored tokens, over all ranks."""
        if self.tokens == 0:
            raise BadData(
                f"none of the {most:,} held-out tokens that are read counts: data.loss_mask leaves "
                "out each; raise validation.tokens or validation.share"
            )
        self.counted = counted.reshape(self.sequences, -1)[rank::world_size].ravel()
        """Which of this rank's targets are scored, in the order of the batches."""
        seen = held_out.tokens[: most + 1]
        windows = sliding_window_view(seen, sequence_length + 1)[::sequence_length]
        self._rows = windows[rank::world_size]
        self._any_row = windows[:1]
        document = np.repeat(np.arange(len(held_out.lengths)), held_out.lengths)
        targets = document[1 : most + 1].reshape(self.sequences, sequence_length)
        self.documents = targets[rank::world_size].ravel()[self.counted]
        """The document of each of this rank's scored targets, in the order of the batches."""
        self.targets = np.bincount(targets.ravel()[counted], minlength=len(held_out.lengths))
        """Number of scored targets of each document, over all ranks."""
        self._micro_batch = micro_batch
        most_of_a_rank = -(-self.sequences // world_size)
        self._padded_rows = min(micro_batch, most_of_a_rank) if padded else 0
        self._batches = -(-most_of_a_rank // micro_batch)
        self._device = torch.device(device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's inputs and targets, int64 [B, T]; the last batch may be smaller.

        If batches are padded, inputs can have more rows than targets; what comes of these rows is
        not scored. Each rank then has as many batches, perhaps with no target.
        """
        for index in range(self._batches):
            rows = self._rows[index * self._micro_batch :][: self._micro_batch].astype(np.int64)
            scored = len(rows)
            if scored < self._padded_rows:
                fill = self._any_row.repeat(self._padded_rows - scored, axis=0)
                rows = np.concatenate([rows, fill.astype(np.int64)])
            elif not scored:
                return
            both = torch.from_numpy(np.stack([rows[:, :-1], rows[:, 1:]])).to(self._device)
            yield both[0], both[1][:scored]


def evaluate(
    model: Decoder,
    held_out: ValidationSet,
    *,
    prefix: str = "val",
    make_input: InputFn,
    ranks: Ranks,
    precision: Precision,
) -> dict[str, float]:
    """Compute the mean loss in nats over the scored held-out tokens, and in bits per byte of text.

    The loss is always ``chunked``, whichever the run trains with, so that runs can be compared.
    Bits per byte compare across tokenizers. Tokens are summed in float64, so that the number of
    ranks changes nothing beyond a batch's own rounding. ``val/loss/NAME`` is the mean over the
    tokens of a source, or of a part of a mix, if there are several.
    """
    losses = held_out_losses(model, held_out.batches(), make_input=make_input, precision=precision)
    sharding.give_up_whole(model)
    # By document, since all ranks know the same documents, but not necessarily their sources.
    documents = len(held_out.targets)
    scored = losses.cpu().numpy()[held_out.counted]
    of_rank = np.bincount(held_out.documents, scored, minlength=documents)
    total = torch.from_numpy(of_rank.astype(np.float64)).to(ranks.device)
    by_document = ranks.sum(total).cpu().numpy()
    loss = float(by_document.sum()) / held_out.tokens
    names, source = np.unique(held_out.sources, return_inverse=True)
    sums, counts = np.bincount(source, by_document), np.bincount(source, held_out.targets)
    of_each = [i for i, name in enumerate(names) if name and counts[i]]
    several = of_each if len(of_each) > 1 else []
    return {
        f"{prefix}/loss": loss,
        f"{prefix}/bits_per_byte": loss / math.log(2) / held_out.bytes_per_token,
        **{f"{prefix}/loss/{names[i]}": float(sums[i] / counts[i]) for i in several},
    }


def held_out_loss(
    operands: torch.dtype, device: torch.device, softcap: float | None = None
) -> partial[Tensor]:
    """Return the losses of an evaluation's tokens, with the products that are fast there."""
    pad_to = FAST_ROWS if device.type == "cuda" else 1
    return partial(token_losses, operands=operands, pad_to=pad_to, softcap=softcap)


@torch.no_grad()
def held_out_losses(
    model: Decoder,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    make_input: InputFn,
    precision: Precision,
) -> Tensor:
    """Return the loss of each scored token of one rank's batches, in nats."""
    device = model.head_weight.device
    losses = [torch.empty(0, device=device)]
    loss = held_out_loss(precision.operands, device, model.config.logit_softcap)
    was_training = model.training
    model.eval()
    for inputs, targets in batches:
        with precision.autocast():
            hidden = model(*make_input(inputs))
        # What only fills up the batch is not scored.
        hidden = hidden.reshape(len(inputs), -1, hidden.shape[-1])[: len(targets)]
        losses.append(loss(hidden, model.head_weight, targets).flatten())
    model.train(was_training)
    return torch.cat(losses)
