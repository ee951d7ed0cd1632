"""Validation loss on the held-out set: fixed tokens, order and precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lehr_trainer.data import PreparedData, ValidationSet
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.documents import InputFn
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision


@torch.no_grad()
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
    total = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    was_training = model.training
    model.eval()
    for inputs, targets in held_out.batches():
        with precision.autocast():
            hidden = model(*make_input(inputs))
        mean = cross_entropy(hidden, head_weight, targets, operands=precision.operands)
        total[0] += mean.double() * targets.numel()
        total[1] += targets.numel()
    model.train(was_training)
    nats, tokens = ranks.sum(total).tolist()
    loss = nats / tokens
    return {"val/loss": loss, "val/bits_per_byte": loss / math.log(2) / data.bytes_per_token}
