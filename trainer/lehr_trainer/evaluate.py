"""Validation loss on the held-out set: fixed tokens, order and precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.data import PreparedData, ValidationSet
from lehr_trainer.losses.variants import Loss, build_loss
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
    Bits per byte compare across tokenizers. Batches are summed in float64, so that the number of
    ranks changes nothing beyond a batch's own rounding.
    """
    total = held_out_sums(
        model, head_weight, held_out.batches(), make_input=make_input, precision=precision
    )
    nats, tokens = ranks.sum(total).tolist()
    loss = nats / tokens
    return {"val/loss": loss, "val/bits_per_byte": loss / math.log(2) / data.bytes_per_token}


def held_out_loss(operands: torch.dtype, device: torch.device) -> Loss:
    """Return the loss of every evaluation, with the products that are fast on the device."""
    return build_loss(LossConfig(), operands, device)


@torch.no_grad()
def held_out_sums(
    model: nn.Module,
    head_weight: Tensor,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    make_input: InputFn,
    precision: Precision,
) -> Tensor:
    """Return the summed loss and the count of scored tokens of one rank's batches."""
    total = torch.zeros(2, dtype=torch.float64, device=head_weight.device)
    loss = held_out_loss(precision.operands, head_weight.device)
    was_training = model.training
    model.eval()
    for inputs, targets in batches:
        with precision.autocast():
            hidden = model(*make_input(inputs))
        # What only fills up the batch is not scored.
        hidden = hidden.reshape(len(inputs), -1, hidden.shape[-1])[: len(targets)]
        mean = loss(hidden, head_weight, targets)
        total[0] += mean.double() * targets.numel()
        total[1] += targets.numel()
    model.train(was_training)
    return total
