"""Batch sizes that publications recommend for a model, in tokens, each with its domain.

They answer different questions, and differ by a factor of several. The critical batch size of
McCandlish et al. 2018 (arXiv:1812.06162) explains the trend: a larger batch pays until the noise of
its gradient is as small as the gradient, and the gradient shrinks as the loss falls. It has to be
measured during a training, so it is not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import flops_per_token, parameter_counts

GPT3_TABLE: tuple[tuple[float, float], ...] = (
    (125e6, 0.5e6),
    (350e6, 0.5e6),
    (760e6, 0.5e6),
    (1.3e9, 1e6),
    (2.7e9, 1e6),
    (6.7e9, 2e6),
    (13e9, 2e6),
    (175e9, 3.2e6),
)
"""Parameters, and tokens of a batch: Brown et al. 2020 (arXiv:2005.14165), table 2.1."""


@dataclass(frozen=True)
class UsualBatch:
    """The batch size that one publication recommends."""

    tokens: float
    source: str
    """Short name, for a line of text."""
    reference: str
    domain: str
    """Where the publication supports it."""


def usual_batches(train: TrainConfig) -> list[UsualBatch]:
    """Return what each publication recommends; those whose domain excludes the run are left out."""
    counts = parameter_counts(train.model)
    found = [
        by_size(counts.total),
        by_tokens(counts.non_embedding, train.total_tokens),
        by_compute(_compute(train)),
    ]
    return [one for one in found if one is not None]


def by_size(parameters: float) -> UsualBatch | None:
    """Return the batch of the nearest model of GPT-3's table; None beyond its ends.

    The nearest by ratio. The table's models were trained on 300 B tokens each.
    """
    smallest, largest = GPT3_TABLE[0][0], GPT3_TABLE[-1][0]
    # Rounding in the paper: its model of "125M" has a few percent less or more.
    if not 0.9 * smallest <= parameters <= 1.1 * largest:
        return None
    _, tokens = min(GPT3_TABLE, key=lambda row: abs(math.log(row[0] / parameters)))
    return UsualBatch(
        tokens,
        "GPT-3's table",
        "Brown et al. 2020, table 2.1, arXiv:2005.14165",
        "125 M to 175 B parameters, trained on 300 B tokens",
    )


def by_tokens(non_embedding: float, tokens: float) -> UsualBatch | None:
    """Return 0.58 D^0.571 of the run's D tokens; None where it was not fitted.

    Step Law found the best batch to depend on the tokens of a training, and hardly on the model.
    """
    if not (non_embedding <= 1.1e9 and 2e9 <= tokens <= 100e9):
        return None
    return UsualBatch(
        0.58 * tokens**0.571,
        "Step Law",
        "Li et al. 2025, arXiv:2503.04715",
        "2 to 100 B tokens, up to 1 B parameters without embeddings",
    )


def by_compute(flops: float) -> UsualBatch | None:
    """Return 0.292 C^0.3271 of the run's C FLOPs without embeddings; None outside its domain."""
    if not 1e17 <= flops <= 1e24:
        return None
    return UsualBatch(
        0.2920 * flops**0.3271,
        "DeepSeek LLM",
        "DeepSeek-AI 2024, arXiv:2401.02954",
        "fitted on 1e17 to 2e19 FLOPs, and used by its authors up to 9e23",
    )


def _compute(train: TrainConfig) -> float:
    """Count FLOPs as DeepSeek LLM does: blocks and attention, neither embedding nor head."""
    model = train.model
    head = 6 * model.vocab_size * model.hidden_size
    each = flops_per_token(model, train.batch.sequence_length) - head
    return each * train.total_tokens
