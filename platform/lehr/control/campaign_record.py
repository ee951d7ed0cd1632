"""A campaign's next trials from its record, within its budget.

``control.campaign_choice`` decides what is worth trying. Here is what it is asked, what a trial
costs in GPU-hours, and the rule that the budget is never exceeded: what has been used, and what
each live trial may still use at most, is within it whenever a trial is added.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression
from typing import Any, NamedTuple

from lehr.analysis.forecast import UNPLANNED, Planned, forecast
from lehr.analysis.laws.question import CampaignAnswer, CampaignTrial, Field, Next, Question, Rung
from lehr.analysis.lr_rules import setting_of
from lehr.base import formats
from lehr.control.lifecycle import ENDED, TIME_LIMIT, Desired, RunState
from lehr.control.search import TrialReport
from lehr.errors import SpecError, SpecProblem
from lehr.specs.campaign import Campaign, Decided, LadderRung
from lehr.specs.search import point_key
from lehr.specs.sweep import SweepSpec

# Reserved for a trial: times what it should cost; for the first, a share of the budget.
MARGIN, PROBE = 2.0, 0.1
STOP_S = 60.0  # Reserved besides, for its start and its stop.
_SLOPES = (0.3, 1.0)  # Bounds of the power of the FLOPs with which a trial's time goes.
_LEAST_SHARE = 1e-3  # Of the target's parameters that the largest affordable rung must have.


Choose = Callable[[Question, tuple[CampaignTrial, ...], float, int, int], Next | None]


@dataclass(frozen=True)
class TrialState:
    number: int
    parameters: Mapping[str, Any]
    run_id: str
    state: RunState
    attempt: int = 0
    desired: Desired = Desired.RUN
    cause: str | None = None
    reason: str | None = None
    ended_at: float | None = None
    total_steps: int | None = None  # None if only its program determines it.
    reports: tuple[TrialReport, ...] = ()  # Reports of the sweep's metric.
    held_out: str | None = None
    """Digest of the held-out set on which the metric is measured; None where unknown, or for
    other metrics.
    """
    waits: bool = False
    """It starts from the last checkpoint of the sweep's trunk, which is not known yet."""
    planned: Planned = UNPLANNED
    hours: float = 0.0  # GPU-hours of a campaign's trial: of attempts that ended, and that live.
    living_hours: float | None = None
    steps_s: float = 0.0  # Of its steps at the newest speed, without start and evaluations.
    limit_s: float = 0.0

    @property
    def ends(self) -> bool:
        """Whether its attempt has ended, and what follows from that is not recorded yet."""
        return self.state.active and self.living_hours is None


class Ledger(NamedTuple):
    """The budget in hours: spent by attempts that have ended, reserved for those that live."""

    total: float
    spent: float
    reserved: float

    @property
    def left(self) -> float:
        return self.total - self.spent - self.reserved


class NextTrial(NamedTuple):
    point: dict[str, Any] | None  # Parameters of the trial to add; None: none now.
    why: str = ""
    limit_s: float = 0.0  # Its time limit, which is reserved for it.
    stop: str | None = None
    answer: CampaignAnswer | None = None


def ledger(campaign: Campaign, trials: Sequence[TrialState]) -> Ledger:
    """Return what the trials have used, and what is reserved for those that live."""
    spent = sum(trial.hours for trial in trials)
    return Ledger(campaign.gpu_hours, spent, sum(reserved(campaign, trial) for trial in trials))


def reserved(campaign: Campaign, trial: TrialState) -> float:
    """Return what the live attempt of a trial, or its next one, may use at most."""
    if trial.state in ENDED or trial.ends:
        return 0.0
    ranks = campaign.rungs[rung_of(campaign, trial)].ranks
    return max((trial.limit_s + STOP_S) * ranks / 3600, trial.living_hours or 0.0)


def overrun(campaign: Campaign, trials: Sequence[TrialState]) -> list[tuple[TrialState, str]]:
    """Return the trials to stop, since a further attempt of theirs is not in the budget."""
    over, stopped = -ledger(campaign, trials).left, []
    for trial in sorted(trials, key=lambda trial: (-trial.hours, -trial.number)):
        own = reserved(campaign, trial)
        if over > 1e-9 and trial.hours and own:
            over -= own
            used = f"it has used {formats.gpu_hours(trial.hours)}"
            stopped.append((trial, f"{used}, and the budget does not hold another attempt of it"))
    return stopped


def rung_of(campaign: Campaign, trial: TrialState) -> int:
    """Return the index of a trial's rung."""
    given = trial.parameters.items()
    return next(n for n, rung in enumerate(campaign.rungs) if rung.point.items() <= given)


def costs(
    campaign: Campaign, trials: Sequence[TrialState], *, at_most: bool = False
) -> list[float] | None:
    """Return the hours of a trial of each rung: the mean of those measured, and by a power of the
    FLOPs of others, the start counted apart. None before one has shown what it costs.

    ``at_most``: beyond the largest that was measured, in proportion to the FLOPs. Small ones cost
    little more than their start, and a trial that is ended by its time limit is lost.
    """
    whole, steps = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for trial in trials:
        if trial.hours and (trial.state is RunState.COMPLETED or trial.cause == TIME_LIMIT):
            index = rung_of(campaign, trial)
            own = trial.steps_s * campaign.rungs[index].ranks / 3600 or trial.hours
            cut = trial.cause == TIME_LIMIT
            whole[index].append(max(own, trial.hours) if cut else trial.hours)
            steps[index].append(own if cut else min(own, trial.hours))
    if not whole:
        return None
    rungs, means = campaign.rungs, {index: fmean(hours) for index, hours in whole.items()}
    work = {index: fmean(hours) for index, hours in steps.items()}
    start = fmean((means[n] - work[n]) / rungs[n].ranks for n in means)
    x = [math.log(rungs[n].flops) for n in work]
    y = [math.log(max(hours, 1e-9)) for hours in work.values()]
    slope = linear_regression(x, y).slope if len(work) > 1 else _SLOPES[1]
    slope = min(max(slope, _SLOPES[0]), _SLOPES[1])
    level = math.exp(fmean(y) - slope * fmean(x))
    top = max(work, key=lambda n: rungs[n].flops)

    def cost(rung: LadderRung) -> float:
        own: float = level * rung.flops**slope
        share = rung.flops / rungs[top].flops
        return start * rung.ranks + (max(own, work[top] * share) if at_most and share > 1 else own)

    return [means.get(n, cost(rung)) for n, rung in enumerate(rungs)]


def next_trial(
    spec: SweepSpec, trials: Sequence[TrialState], choose: Choose | None = None
) -> NextTrial:
    """Return the trial to add now, or why there is none. ``choose`` makes the choice, by default
    at once; its None: not yet.
    """
    from lehr.control import campaign_choice

    campaign = campaign_of(spec)
    live = any(trial.state not in ENDED for trial in trials)
    left, hours = ledger(campaign, trials).left, costs(campaign, trials)
    if hours is None:
        if live:
            return NextTrial(None, "The first trial shows what one costs.")
        first = PROBE * campaign.gpu_hours / MARGIN
        hours = [first * rung.flops / campaign.rungs[0].flops for rung in campaign.rungs]
    most = costs(campaign, trials, at_most=True) or hours
    question, told, order = asked(spec, hours, trials)
    room = max((left - STOP_S * campaign.rungs[0].ranks / 3600) / MARGIN, 0.0)
    decided = (choose or campaign_choice.choose)(question, tuple(told), room, 1, spec.seed)
    if decided is None:
        return NextTrial(None, "The next trial is being chosen.")
    stop = decided.stop
    for chosen in decided.trials[:1]:
        rung = campaign.rungs[order[chosen.rung]]
        limit_s = math.ceil(MARGIN * most[order[chosen.rung]] * 3600 / rung.ranks)
        if (limit_s + STOP_S) * rung.ranks / 3600 <= left:
            point = _point(spec, rung, chosen, trials)
            return NextTrial(point, decided.why, limit_s, None, decided.answer)
        stop = f"The budget holds no further trial: {formats.gpu_hours(left)} are left."
    return NextTrial(None, decided.why, 0.0, None if live else stop, decided.answer)


def refuse(spec: SweepSpec, hours: Sequence[float | None]) -> None:
    """Refuse a budget that holds no trial, or only those that say nothing about the target.

    ``hours``: planned ones of a trial of each rung; None where they are not known.
    """
    campaign = campaign_of(spec)
    budget, rungs = formats.gpu_hours(campaign.gpu_hours), campaign.rungs
    least = (hours[0] or 0.0) + STOP_S * rungs[0].ranks / 3600
    held = [n for n, cost in enumerate(hours) if cost is None or cost <= campaign.gpu_hours]
    share = max((rungs[n].parameters for n in held), default=0) / campaign.target.parameters
    problem = f"a trial of the smallest rung takes about {formats.gpu_hours(least)}"
    if least <= campaign.gpu_hours:
        problem = f"the largest rung that it holds has {share:.1g} of the target's parameters"
        if share >= _LEAST_SHARE:
            return
    hint = "Raise it, or aim at a smaller target."
    raise SpecError([SpecProblem("budget", f"budget is {budget}; {problem}.", hint)])


def asked(
    spec: SweepSpec, hours: Sequence[float], trials: Sequence[TrialState]
) -> tuple[Question, list[CampaignTrial], list[int]]:
    """Return the question, what the trials tell, and the campaign's rung of each of the question's:
    these ascend in hours.
    """
    campaign, target = campaign_of(spec), setting_of(spec.run.own)
    order = sorted(range(len(hours)), key=lambda index: hours[index])
    rungs = []
    for index in order:
        rung = campaign.rungs[index]
        names = ("width", "depth", "non_embedding", "batch", "tokens")
        setting = replace(target, **{name: getattr(rung, name) for name in names})
        rungs.append(Rung(rung.title, setting, hours[index]))
    fields = []
    for path, one in campaign.decide.items():
        by, log = scale(spec, one), one.role != "other" or one.min > 0.0
        fields.append(Field(path, one.role, one.min * by, one.max * by, log))
    limits = (campaign.answer.lr_regret, campaign.answer.loss_within, campaign.published)
    told = [replace(one, rung=order.index(one.rung)) for one in observed(spec, trials)]
    return Question(target, tuple(fields), tuple(rungs), *limits), told, order


def scale(spec: SweepSpec, decided: Decided) -> int:
    """Return the factor of a value in the question: a batch counts in tokens there."""
    return spec.run.own.batch.sequence_length if decided.role == "batch" else 1


def observed(spec: SweepSpec, trials: Sequence[TrialState]) -> list[CampaignTrial]:
    """Return what the trials tell, also those that were ended early; other failures do not."""
    campaign, told = campaign_of(spec), []
    for trial in trials:
        known = ending(trial)
        if known is None and trial.state in ENDED:
            continue
        tried, seed = trial.parameters, int(trial.parameters.get(spec.seed_path, 0))
        values = tuple(tried[path] * scale(spec, one) for path, one in campaign.decide.items())
        told.append(CampaignTrial(rung_of(campaign, trial), values, seed, *(known or (None,))))
    return told


def ending(trial: TrialState) -> tuple[float, float] | None:
    """Return the loss at a trial's end, infinite if it diverged, and its doubt as a standard
    deviation: one that was pruned or reached its time limit has a forecast. None: it tells nothing.
    """
    if trial.state is RunState.FAILED and trial.cause == "nan_loss":
        return math.inf, 0.0
    early = trial.state is RunState.PRUNED
    early = early or (trial.state is RunState.FAILED and trial.cause == TIME_LIMIT)
    if not trial.reports or not (trial.state is RunState.COMPLETED or early):
        return None
    last = trial.reports[-1]
    if not math.isfinite(last.value):
        return math.inf, 0.0
    if not early or last.step == trial.total_steps:
        return last.value, 0.0
    steps, losses = zip(*((one.step, one.value) for one in trial.reports), strict=True)
    end = forecast(steps, losses, trial.total_steps, *trial.planned)
    if end.value is None or end.likely is None:
        return None
    return end.value, (end.likely[1] - end.likely[0]) / 2


def _point(
    spec: SweepSpec, rung: LadderRung, chosen: CampaignTrial, trials: Sequence[TrialState]
) -> dict[str, Any]:
    """Return the parameters of a trial; never those of an existing one: then it has a new seed."""
    unit = int(rung.set.get("train.batch.micro_batch", 1)) * rung.ranks
    point = {**rung.point, **rounded(spec, chosen.values, unit)}
    known = {point_key(trial.parameters) for trial in trials}
    seed = chosen.seed
    while point_key({**point, spec.seed_path: seed}) in known:
        seed += 1
    return {**point, spec.seed_path: seed}


def rounded(spec: SweepSpec, values: Sequence[float], unit: int) -> dict[str, float]:
    """Return decided values by path; a batch is a multiple of ``unit`` sequences."""
    found = {}
    for (path, one), value in zip(campaign_of(spec).decide.items(), values, strict=True):
        found[path] = one.rounded(value)
        if one.role == "batch":
            found[path] = max(round(value / scale(spec, one) / unit), 1) * unit
    return found


def campaign_of(spec: SweepSpec) -> Campaign:
    assert spec.campaign is not None
    return spec.campaign
