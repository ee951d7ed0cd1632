"""Rules that carry a learning rate from one training to a larger one, each with its source.

A rule is a product of parts, or a law that gives a rate by itself. The parts are factors for what
changes: width, depth, batch, tokens. ``tests/bench/lr_transfer.py`` measures each rule's regret on
published runs, and docs/judgement.md has the table; ``DEFAULT`` is the rule with the least. Rules
that lose more than the sweep's rate as it is are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lehr.base.formats import amount
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import parameter_counts

Quantity = Literal["width", "depth", "non_embedding", "batch", "tokens"]


@dataclass(frozen=True)
class Setting:
    """What the rules read of a training."""

    width: float  # Of the residual stream.
    depth: float  # Transformer blocks.
    non_embedding: float  # Parameters.
    batch: float  # Tokens of an optimizer step.
    tokens: float  # Tokens of the whole training.
    width_power: float = -1.0
    """Power of width with which the best rate goes: -1 for AdamW; 0 under muP."""

    def ratio(self, other: Setting, quantity: Quantity) -> float:
        """Return ``other`` / this of a quantity."""
        there, here = getattr(other, quantity), getattr(self, quantity)
        return float(there / here)


def setting_of(train: TrainConfig, tokens: float | None = None) -> Setting:
    """Return the setting of a training; ``tokens`` replaces its length."""
    model = train.model
    return Setting(
        width=model.hidden_size,
        depth=model.num_hidden_layers,
        non_embedding=parameter_counts(model).non_embedding,
        batch=max(train.spans, key=lambda span: span.trained).batch.tokens_per_step,
        tokens=float(train.total_tokens if tokens is None else tokens),
        width_power=_width_power(train),
    )


def _width_power(train: TrainConfig) -> float:
    if train.model.parametrization == "mup":
        return 0.0
    if isinstance(train.optimizer, MuonConfig):
        return math.log2(train.optimizer.mup_rate(2.0))
    return -1.0 if train.optimizer.lr_scales_with_width else 0.0


@dataclass(frozen=True)
class Part:
    """The factor of one quantity."""

    quantity: Quantity
    formula: str
    source: str
    doubt: str
    factor: Callable[[Setting, Setting], float]  # Of the source's and the target's setting.


@dataclass(frozen=True)
class Rule:
    """One way to the target's rate: the sweep's rate times parts, or a law of the target alone."""

    name: str
    title: str
    domain: str
    parts: tuple[Part, ...] = ()
    law: Callable[[Setting], float] | None = None
    formula: str = ""  # Of a law; a product's follows from its parts.
    source: str = ""  # Of a law.
    outside: Callable[[Setting, Setting], str | None] = lambda _source, _target: None
    """Why the rule is outside its domain, as the end of a sentence; None inside."""

    def rate(self, rate: float, source: Setting, target: Setting) -> float:
        """Return the target's rate for the source's best ``rate``."""
        if self.law is not None:
            return self.law(target)
        return rate * math.prod(part.factor(source, target) for part in self.parts)


def _power(quantity: Quantity, power: float) -> Callable[[Setting, Setting], float]:
    return lambda source, target: source.ratio(target, quantity) ** power


WIDTH = Part(
    "width",
    "1 / width (AdamW); unchanged under muP and for Muon",
    "Yang et al. 2022, arXiv:2203.03466; for Muon arXiv:2310.17813",
    "derived for very wide models; published tables lie between width^-0.8 and width^-1",
    lambda source, target: source.ratio(target, "width") ** target.width_power,
)
DEPTH = Part(
    "depth",
    "1 / sqrt(layers)",
    "Yang et al. 2023, arXiv:2310.02244",
    "derived for blocks of one layer with scaled branches; others leave the rate as it is",
    _power("depth", -0.5),
)
QUARTER = Part(
    "batch",
    "batch^0.25",
    "half of the power of Malladi et al. 2022, arXiv:2205.10782: the least regret on 1,295 runs",
    "chosen on the runs of arXiv:2503.04715; the square root is right for small changes",
    _power("batch", 0.25),
)


def step_law(setting: Setting) -> float:
    """Return 1.79 N^-0.713 D^0.307 for N parameters without embeddings and D tokens."""
    return float(1.79 * setting.non_embedding**-0.713 * setting.tokens**0.307)


def _outside_step_law(_source: Setting, target: Setting) -> str | None:
    if not 60e6 <= target.non_embedding <= 1.1e9:
        many = amount(target.non_embedding)
        return f"{many} parameters without embeddings, fitted on 60 M to 1.1 B"
    if not 2e9 <= target.tokens <= 100e9:
        return f"{amount(target.tokens)} tokens, fitted on 2 to 100 B"
    best = 0.58 * target.tokens**0.571
    if not 0.25 <= target.batch / best <= 4:
        return f"{target.batch:.2g} tokens a batch, but its own best batch is {best:.2g}"
    return None


def _far(most_batch: float) -> Callable[[Setting, Setting], str | None]:
    def outside(source: Setting, target: Setting) -> str | None:
        limits: tuple[tuple[Quantity, float], ...] = (
            ("width", 16.0),
            ("depth", 8.0),
            ("batch", most_batch),
            ("tokens", 100.0),
        )
        for quantity, most in limits:
            ratio = source.ratio(target, quantity)
            if max(ratio, 1 / ratio) > most:
                return f"{quantity} changes by a factor of {ratio:.3g}; at most {most:g} is known"
        return None

    return outside


_SMALL = "width to 16 times, depth to 8 times, tokens to 100 times the sweep's"
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "quarter",
            "width, depth and a fourth root of the batch",
            f"{_SMALL}; batch to 64 times",
            (WIDTH, DEPTH, QUARTER),
            outside=_far(64.0),
        ),
        Rule("width", "width alone", f"{_SMALL}; one batch size", (WIDTH,), outside=_far(2.0)),
        Rule(
            "keep",
            "the sweep's rate as it is",
            "muP at one depth, batch and length; nothing else",
            outside=_far(2.0),
        ),
        Rule(
            "step_law",
            "Step Law",
            "AdamW; the schedule and the data of its authors; 60 M to 1.1 B parameters, 2 to 100 B "
            "tokens, its own batch",
            law=step_law,
            formula="1.79 N^-0.713 D^0.307",
            source="Li et al. 2025, arXiv:2503.04715",
            outside=_outside_step_law,
        ),
    )
}
DEFAULT = "quarter"  # The rule with the least regret on published runs (docs/judgement.md).
