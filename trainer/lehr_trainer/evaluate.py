"""Validation loss on the held-out set: fixed tokens, order and precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lehr_trainer.data import PreparedData, ValidationSet
from lehr_trainer.losses.chunked import token_losses
from lehr_trainer.losses.variants import FAST_ROWS, Loss
from lehr_trainer.models.documents import InputFn
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision


def evaluate(
    model: nn.Module,
    head_weight: Tensor,
    held_out: ValidationSet,
    *,
    make_input: InputFn,
    data: PreparedData,
    ranks: Ranks,
    precision: Precision,
) -> dict[str, float]:
    """Compute the mean loss in nats over every held-out token, and in bits per byte of text.

    The loss is always ``chunked``, whichever the run trains with, so that runs can be compared.
    Bits per byte compare across tokenizers. Tokens are summed in float64, so that the number of
    ranks changes nothing beyond a batch's own rounding. ``val/loss/NAME`` is the mean over the
    tokens of a source, or of a part of a mix, if there are several.
    """
    losses = held_out_losses(
        model, head_weight, held_out.batches(), make_input=make_input, precision=precision
    )
    # By document, since all ranks know the same documents, but not necessarily their sources.
    documents = len(held_out.targets)
    of_rank = np.bincount(held_out.documents, losses.cpu().numpy(), minlength=documents)
    total = torch.from_numpy(of_rank.astype(np.float64)).to(head_weight.device)
    by_document = ranks.sum(total).cpu().numpy()
    loss = float(by_document.sum()) / held_out.tokens
    return {
        "val/loss": loss,
        "val/bits_per_byte": loss / math.log(2) / data.bytes_per_token,
        **_by_source(data.held_out.sources, by_document, held_out.targets),
    }


def _by_source(
    sources: Sequence[str], losses: NDArray[Any], targets: NDArray[Any]
) -> dict[str, float]:
    """Return the mean loss of each source; empty unless targets of several are scored."""
    names, source = np.unique(sources, return_inverse=True)
    sums, counts = np.bincount(source, losses), np.bincount(source, targets)
    scored = [i for i, name in enumerate(names) if name and counts[i]]
    several = scored if len(scored) > 1 else []
    return {f"val/loss/{names[i]}": float(sums[i] / counts[i]) for i in several}


def held_out_loss(operands: torch.dtype, device: torch.device) -> Loss:
    """Return the losses of an evaluation's tokens, with the products that are fast there."""
    pad_to = FAST_ROWS if device.type == "cuda" else 1
    return partial(token_losses, operands=operands, pad_to=pad_to)


@torch.no_grad()
def held_out_losses(
    model: nn.Module,
    head_weight: Tensor,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    make_input: InputFn,
    precision: Precision,
) -> Tensor:
    """Return the loss of each scored token of one rank's batches, in nats."""
    losses = [torch.empty(0, device=head_weight.device)]
    loss = held_out_loss(precision.operands, head_weight.device)
    was_training = model.training
    model.eval()
    for inputs, targets in batches:
        with precision.autocast():
            hidden = model(*make_input(inputs))
        # What only fills up the batch is not scored.
        hidden = hidden.reshape(len(inputs), -1, hidden.shape[-1])[: len(targets)]
        losses.append(loss(hidden, head_weight, targets).flatten())
    model.train(was_training)
    return torch.cat(losses)
