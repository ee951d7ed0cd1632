"""Campaigns: what is asked, what was tried and what it cost, what is believed of the target."""

from __future__ import annotations

from typing import Any

from lehr.schemas.base import Measured, View
from lehr.schemas.laws import Believed
from lehr.specs.campaign import Decided, Enough, LadderRung


class CampaignTrialView(View):
    number: int
    run_id: str
    state: str
    rung: int
    """Its index in the rungs."""
    values: dict[str, Any]
    """What is decided, by path."""
    seed: int
    loss: Measured | None = None
    """At its end; infinite: it diverged; null: it tells nothing yet."""
    doubt: float = 0.0
    """Standard deviation of a loss that is a forecast: it was ended early."""
    hours: float
    """GPU-hours of its attempts until now."""
    used: float | None = None
    """GPU-hours of all trials by the time that it had ended."""
    reserved: float
    """GPU-hours that its attempt may use at most; 0 once it has ended."""
    why: str = ""
    """Why it was started."""
    text: str
    """What it was and ended at, in words."""


class BudgetUse(View):
    """GPU-hours: spent by attempts that have ended, reserved for those that live."""

    total: float
    spent: float
    reserved: float
    left: float
    dollars_per_gpu_hour: float | None = None


class AnswerView(View):
    """What is believed of the target: its final loss with the recommended values, and the best."""

    loss: Believed
    best: dict[str, Believed]
    """By path; ``value``: the recommended one."""
    regret: float
    """Loss that these values are expected to cost above the best ones."""
    outside: str | None = None
    """How far the target lies outside of what was measured."""
    text: str
    """The same in words."""


class CourseView(AnswerView):
    hours: float
    """GPU-hours that had been used then."""
    trials: int
    """Trials that had told something."""


class CampaignView(View):
    sweep_id: str
    name: str
    metric: str
    target: LadderRung
    decide: dict[str, Decided]
    """By path."""
    enough: Enough
    published: bool
    rungs: list[LadderRung]
    """From the one with the fewest FLOPs."""
    hours: list[float] | None = None
    """GPU-hours of a trial of each; null before one has ended."""
    trials: list[CampaignTrialView]
    rung_table: list[list[str]]
    """What was tried at each rung, in words, after a head."""
    course: list[CourseView] = []
    """As it narrowed, if asked."""
    figures: dict[str, str] = {}
    """SVG of the course by title."""
    budget: BudgetUse
    facts: list[tuple[str, str]] = []
    """What is known, spent and next, in words: name and text."""
    answer: AnswerView | None = None  # null: too little is known.
    why: str = ""
    """Why the next trial is what it is, or why there is none now."""
    stopped: str | None = None
    """Why nothing more is started; null: it goes on."""
    cost: str | None = None
    """Estimated for the target, in words; null: not known."""
    rollout: str | None = None
    """The target with the recommended values as YAML, for ``lehr rollout``; then as a spec."""
    rollout_spec: dict[str, Any] | None = None
