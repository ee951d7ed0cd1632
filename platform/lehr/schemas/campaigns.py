"""Campaigns: what is asked, what was tried and what it cost, what is believed of the target."""

from __future__ import annotations

from typing import Any

from lehr.schemas.base import Measured, View
from lehr.specs.campaign import Decided, Enough, LadderRung

Interval = tuple[float, float]


class DecidedView(Decided):
    """A number that the campaign decides, and what is believed of its best value."""

    value: float | None = None  # The recommended one; null until enough is known.
    likely: Interval | None = None  # With 68 %; ``sure``: with 95 %.
    sure: Interval | None = None


class CampaignTrialView(View):
    number: int
    run_id: str
    state: str
    rung: int  # Its index in the rungs.
    values: dict[str, Any]  # What is decided, by path.
    seed: int
    loss: Measured | None = None  # At its end; infinite: it diverged; null: it tells nothing yet.
    doubt: float = 0.0  # Standard deviation of a loss that is a forecast: it was ended early.
    hours: float  # GPU-hours of its attempts until now.
    used: float | None = None  # GPU-hours of all trials by the time that it had ended.
    reserved: float  # GPU-hours that its attempt may use at most; 0 once it has ended.
    why: str = ""  # Why it was started.
    text: str  # What it was and ended at, in words.


class BudgetUse(View):
    """GPU-hours: spent by attempts that have ended, reserved for those that live."""

    total: float
    spent: float
    reserved: float
    left: float
    dollars_per_gpu_hour: float | None = None


class AnswerView(View):
    """The final loss of the target with the recommended values, with 68 and 95 %."""

    regret: float  # Loss that these values are expected to cost above the best ones.
    loss: float
    likely: Interval
    sure: Interval
    outside: str | None = None  # How far the target lies outside of what was measured.


class CourseView(View):
    """What was believed when so many trials had told something, after so many GPU-hours."""

    hours: float
    trials: int
    decide: dict[str, DecidedView]
    answer: AnswerView
    text: str  # The answer in words.


class CampaignView(View):
    sweep_id: str
    name: str
    metric: str
    target: LadderRung
    decide: dict[str, DecidedView]  # By path.
    enough: Enough
    published: bool
    rungs: list[LadderRung]  # From the one with the fewest FLOPs.
    hours: list[float] | None = None  # GPU-hours of a trial of each; null before one has ended.
    trials: list[CampaignTrialView]
    rung_table: list[list[str]]  # What was tried at each rung, in words, after a head.
    course: list[CourseView] = []  # As it narrowed, if asked.
    figures: dict[str, str] = {}  # SVG of the course by title.
    budget: BudgetUse
    facts: list[tuple[str, str]] = []  # What is known, spent and next, in words: name and text.
    answer: AnswerView | None = None  # null: too little is known.
    why: str = ""  # Why the next trial is what it is, or why there is none now.
    stopped: str | None = None  # Why nothing more is started; null: it goes on.
    cost: str | None = None  # Estimated for the target, in words; null: not known.
    rollout: str | None = None
    """The target with the recommended values as YAML, for ``lehr rollout``; then as a spec."""
    rollout_spec: dict[str, Any] | None = None
