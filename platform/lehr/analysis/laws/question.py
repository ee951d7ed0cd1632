"""What a campaign asks, what was tried, and what it answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lehr.analysis.lr_fit import Range
from lehr.analysis.lr_rules import Setting

Role = Literal["rate", "batch", "other"]


@dataclass(frozen=True)
class Field:
    """A number that the campaign decides."""

    path: str
    role: Role  # A rate; tokens of a step; any other number. At most one each of the first two.
    low: float  # Lowest value at the target; that of a smaller training follows by the prior.
    high: float
    log: bool  # Its logarithm counts, not the number itself; always of a rate and a batch.


@dataclass(frozen=True)
class Rung:
    """A training that trials may use: the target, smaller or shorter."""

    name: str  # For people, such as "1/8 of the width, 52 M tokens".
    setting: Setting  # Its batch is the one of its trials where batch is not decided.
    hours: float  # GPU-hours that one trial is expected to cost.
    points: tuple[tuple[float, ...], ...] | None = None  # The only values that may be tried.


@dataclass(frozen=True)
class CampaignTrial:
    """A trial, past, present or proposed, of a rung by its index; one value for each field."""

    rung: int
    values: tuple[float, ...]
    seed: int
    loss: float | None  # At its end. None: queued or running. Infinite: it diverged.
    doubt: float = 0.0  # Standard deviation of a loss that is a forecast: it was stopped.


@dataclass(frozen=True)
class Question:
    """What is asked of a campaign; its rungs are by ascending hours."""

    target: Setting
    fields: tuple[Field, ...]
    rungs: tuple[Rung, ...]
    # Good enough: the recommended values are expected to cost less loss than this, and half of the
    # 68 % interval of the target's loss is narrower than that (None: any width).
    regret: float = 0.005
    loss_within: float | None = 0.02
    published: bool = True  # Published runs count as a weak prior.


@dataclass(frozen=True)
class CampaignAnswer:
    """What is believed of the target: values that are expected to cost least, for each field the
    intervals of the best value with 68 and 95 %, and the final loss of one such training.
    """

    values: tuple[float, ...]
    intervals: tuple[tuple[Range, Range], ...]
    regret: float  # Loss that the values are expected to cost above the best ones.
    loss: float
    likely: Range  # Of the loss with 68 %; sure: with 95 %.
    sure: Range
    outside: str | None  # How far the target lies outside of what was measured, as a sentence.


@dataclass(frozen=True)
class Next:
    """The decision, with its reason as a sentence."""

    trials: tuple[CampaignTrial, ...]  # To start now, without a loss.
    why: str
    stop: str | None  # Why nothing more is started, as a sentence; None: it goes on.
    answer: CampaignAnswer | None  # None: too little is known.
