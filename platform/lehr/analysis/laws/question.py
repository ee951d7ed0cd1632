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
    """Such as ``train.optimizer.lr``."""
    role: Role
    """A learning rate; tokens of a step; or any other number. At most one of the first two each."""
    low: float
    """Lowest value at the target. That of a smaller training follows from it by the prior."""
    high: float
    log: bool
    """Its logarithm counts, not the number itself; always of a rate and a batch."""


@dataclass(frozen=True)
class Rung:
    """A training that trials may use: the target, smaller or shorter."""

    name: str
    """For people, such as "1/8 of the width, 52 M tokens"."""
    setting: Setting
    """Its batch is the one of its trials where batch is not decided."""
    hours: float
    """GPU-hours that one trial is expected to cost."""
    points: tuple[tuple[float, ...], ...] | None = None
    """The only values that may be tried, one for each field; None: any."""


@dataclass(frozen=True)
class Trial:
    """A trial of a rung, past, present or proposed."""

    rung: int
    """Its index in the question's rungs."""
    values: tuple[float, ...]
    """One for each field."""
    seed: int
    loss: float | None
    """At its end. None: queued or running. Infinite: it diverged."""
    doubt: float = 0.0
    """Standard deviation of a loss that is a forecast, of a trial that was stopped."""


@dataclass(frozen=True)
class Question:
    """What is asked of a campaign."""

    target: Setting
    fields: tuple[Field, ...]
    rungs: tuple[Rung, ...]
    """By ascending hours."""
    regret: float = 0.005
    """Good enough: the recommended values are expected to cost less loss than this, and"""
    loss_within: float | None = 0.02
    """half of the 68 % interval of the target's loss is narrower than this. None: any width."""
    published: bool = True
    """Published runs count as a weak prior."""


@dataclass(frozen=True)
class Answer:
    """What is believed of the target."""

    values: tuple[float, ...]
    """The recommended ones, which are expected to cost least."""
    intervals: tuple[tuple[Range, Range], ...]
    """Of each field's best value: with 68 and with 95 %."""
    regret: float
    """Loss that the recommended values are expected to cost above the best ones."""
    loss: float
    """Final loss of one training with the recommended values."""
    likely: Range
    """The interval that holds it with 68 %."""
    sure: Range
    """The interval that holds it with 95 %."""
    outside: str | None
    """How far the target lies outside of what was measured, as a sentence; None: inside."""


@dataclass(frozen=True)
class Next:
    """The decision."""

    trials: tuple[Trial, ...]
    """To start now, without a loss."""
    why: str
    """Why these, or why none, as a sentence."""
    stop: str | None
    """Why nothing more is started, as a sentence; None: it goes on."""
    answer: Answer | None
    """None: too little is known."""
