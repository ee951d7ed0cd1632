"""Decide what a sweep does next: a new point, trials to prune, or to stop.

Pure: decided from the recorded trials, so the decision after a restart is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lehr.analysis.batches import HeldOut
from lehr.base.names import PROGRAM_SEED, SEED
from lehr.control import campaign_record
from lehr.control.campaign_record import Choose, TrialState
from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.control.search import Prune, SearchTrial, TrialKind, TrialReport, ask, prune
from lehr.errors import SpecError
from lehr.specs.run import LONGEST_NOTE, RunSpec
from lehr.specs.search import Pruning, point_key, random_points
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import trials_at

REPLAY_PAUSE_S = 1e-6
"""Pause after a replay for pruning, per report and trial: about ten times what the replay takes."""
_PAUSES_S = (1.0, 300.0)  # A shorter pause is none, since ticks are not closer; no pause is longer.
SAME_CAUSE = 3  # This many equal failures without any success stop the sweep.
_OF_THE_TRIAL = frozenset({"nan_loss"})
"""Causes that lie in a trial's values: a learning rate that diverges is no evidence about the
others.
"""
OF_TRUNK = "trunk"
"""The cause of a trial that ended, or waits again, because the trunk of its sweep did."""
_DRAWS = 20  # How often TPE may propose an existing point before one is drawn at random.


@dataclass(frozen=True)
class Trunk:
    """The run that trains the stages that the trials share; they start from its end."""

    run_id: str
    name: str
    state: RunState
    reason: str | None = None
    base: str | None = None
    """Folder of its last checkpoint; None before it has completed, or if that was removed."""


@dataclass(frozen=True)
class OpenSweep:
    id: str
    spec: SweepSpec
    trials: Sequence[TrialState]  # In its order.
    stopped: bool = False  # It starts no more trials.
    reopened_at: float = 0.0  # Earlier failures do not count.
    judged: bool = True
    """Whether to look for trials to prune; in a large sweep not at each new report."""
    trunk: Trunk | None = None
    choose: Choose | None = None  # Makes the choice of a campaign.


@dataclass(frozen=True)
class PruneTrial:
    run_id: str
    attempt: int  # The attempt that was judged; a later one is judged again.
    message: str


@dataclass(frozen=True)
class StopSweep:
    sweep_id: str
    reason: str


@dataclass(frozen=True)
class AddTrials:
    """Create trials: one point, once per seed."""

    sweep_id: str
    trials: Sequence[tuple[dict[str, Any], RunSpec]]  # Parameters and spec of each.
    known: int  # Number of the sweep's trials when this was decided.


@dataclass(frozen=True)
class FollowTrunk:
    """Let the trials that wait for the trunk start, end with it, or wait again."""

    sweep_id: str
    trunk: Trunk
    why: str


Action = StopSweep | PruneTrial | AddTrials | FollowTrunk


@dataclass(frozen=True)
class Decision:
    stop: str | None = None  # Why no more trials start.
    prune: tuple[PruneTrial, ...] = ()
    points: tuple[dict[str, Any], ...] = ()  # Trials to create: one point, once per seed.
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of their runs that are not swept."""


def actions(sweep: OpenSweep) -> list[Action]:
    """Return what follows from its trunk, then from the trials: stop, prune, create the next."""
    if (trunk := sweep.trunk) is not None:
        why = _followed(trunk, [trial for trial in sweep.trials if trial.waits])
        if why or trunk.state is not RunState.COMPLETED:
            return [FollowTrunk(sweep.id, trunk, why)] if why else []
    since, judged = sweep.reopened_at, sweep.judged
    decision = decide(
        sweep.spec,
        sweep.trials,
        sweep.choose,
        stopped=sweep.stopped,
        reopened_at=since,
        judged=judged,
    )
    stop = [StopSweep(sweep.id, decision.stop)] if decision.stop is not None else []
    return [*stop, *decision.prune, *([_next_trials(sweep, decision)] if decision.points else [])]


def _followed(trunk: Trunk, waiting: Sequence[TrialState]) -> str:
    """Return why the trials that wait for the trunk start, end or wait again now, if they do."""
    if trunk.base is not None:
        return f"{trunk.name} has completed" if waiting else ""
    if trunk.state not in ENDED:
        failed = any(one.state is RunState.FAILED and one.cause == OF_TRUNK for one in waiting)
        return f"{trunk.name} was queued again" if failed else ""
    removed = trunk.state is RunState.COMPLETED
    reason = "its last checkpoint was removed" if removed else trunk.reason
    text = f"it starts where {trunk.name} ends, which is {trunk.state.value}"
    queued = any(trial.state is RunState.QUEUED for trial in waiting)
    return (f"{text}: {reason}" if reason else text) if queued else ""


def _next_trials(sweep: OpenSweep, decision: Decision) -> AddTrials | StopSweep:
    known = len(sweep.trials)
    try:
        made = trials_at(sweep.spec, decision.points, first=known + 1, **decision.changes)
        return AddTrials(sweep.id, made, known)
    except SpecError as error:
        # The bounds of each range were checked, but not every combination of values.
        return StopSweep(sweep.id, f"the next trial cannot be created: {error}")


def decide(
    spec: SweepSpec,
    trials: Sequence[TrialState],
    choose: Choose | None = None,
    *,
    stopped: bool,
    reopened_at: float = 0.0,
    judged: bool = True,
) -> Decision:
    """Decide what follows from the trials. ``OpenSweep`` describes the arguments."""
    stop = None if stopped else _why_stop(spec, trials, reopened_at)
    prunes = _prunes(spec, trials) if judged else ()
    if spec.campaign is not None:
        over = campaign_record.overrun(spec.campaign, trials)
        prunes += tuple(PruneTrial(one.run_id, one.attempt, why) for one, why in over)
        if over and not stopped:  # What waits for another attempt is cancelled so.
            stop = stop or f"trial {over[0][0].number}: {over[0][1]}"
        held = (t.state is RunState.PAUSED or t.desired is Desired.PAUSE or t.ends for t in trials)
        if stop or stopped or any(held) or not wants_point(spec, trials):
            return Decision(stop, prunes)
        chosen = campaign_record.next_trial(spec, trials, choose)
        if chosen.point is None:
            return Decision(chosen.stop, prunes)
        changes = {"notes": chosen.why[:LONGEST_NOTE], "time_limit_s": chosen.limit_s}
        return Decision(None, prunes, (chosen.point,), changes)
    points: tuple[dict[str, Any], ...] = ()
    if stop is None and not stopped and wants_point(spec, trials):
        points = tuple(spec.seeded(next_point(spec, trials)))
    return Decision(stop, prunes, points)


def pause_of_pruning_s(spec: SweepSpec, trials: Sequence[TrialState]) -> float:
    """Return how long not to look again for trials to prune; 0 for all but large sweeps.

    Each look replays all reports of all trials, so its time grows with both. Without a pause, a
    sweep of 1,000 trials that report all the time would fill the dispatcher's thread.
    """
    if spec.pruning is None:
        return 0.0
    reports = sum(len(_trial(trial, {}, spec.pruning).reports) for trial in trials)
    least, most = _PAUSES_S
    pause_s = min(most, reports * len(trials) * REPLAY_PAUSE_S)
    return pause_s if pause_s > least else 0.0


def needs_reports(
    spec: SweepSpec, trials: Sequence[TrialState], *, stopped: bool, judged: bool = True
) -> bool:
    """Return whether the decision needs the metric; reading it is expensive."""
    prunes = judged and spec.pruning is not None
    if prunes and any(trial.state is RunState.RUNNING for trial in trials):
        return True
    if stopped:
        return False
    return wants_point(spec, trials) or _failed_alike(trials, 0.0) is not None


def trials_remaining(spec: SweepSpec, trials: int) -> int:
    """Return the number of points that TPE has yet to choose; of a campaign, that it goes on."""
    if spec.method != "tpe":
        return int(spec.campaign is not None)
    return max(spec.point_count - trials // spec.seed_count, 0)


def wants_point(spec: SweepSpec, trials: Sequence[TrialState]) -> bool:
    """Return whether TPE should choose another point now.

    As late as possible, since later choices know more: when none of the sweep's runs waits for a
    GPU, within ``max_concurrent``.
    """
    if not trials_remaining(spec, len(trials)):
        return False
    live = [trial for trial in trials if trial.state not in ENDED]
    if any(trial.state is RunState.QUEUED for trial in live):
        return False
    return spec.max_concurrent is None or len(live) < spec.max_concurrent


def next_point(spec: SweepSpec, trials: Sequence[TrialState]) -> dict[str, Any]:
    """Return the next point of a TPE sweep, without its seed; never an existing one."""
    searched = [_trial(trial, _point(spec, trial)) for trial in trials]
    known = {point_key(trial.parameters) for trial in searched}
    number = len(trials) // spec.seed_count + 1
    for draw in range(_DRAWS):
        point = ask(
            spec.space,
            searched,
            goal=spec.metric.goal,
            seed=spec.seed,
            number=number + draw * 1_000_003,
        )
        if point_key(point) not in known:
            return point
    # Among one more draws than there are trials, at least one is new.
    drawn = islice(random_points(spec.space, spec.seed), len(known) + 1)
    return next(point for point in drawn if point_key(point) not in known)


def _point(spec: SweepSpec, trial: TrialState) -> dict[str, Any]:
    seeds = {SEED, PROGRAM_SEED, spec.seed_path} if spec.seeds is not None else set()
    return {path: v for path, v in trial.parameters.items() if path not in seeds}


def _why_stop(spec: SweepSpec, trials: Sequence[TrialState], reopened_at: float) -> str | None:
    waiting = any(trial.state in {RunState.QUEUED, RunState.PAUSED} for trial in trials)
    if not waiting and not trials_remaining(spec, len(trials)):
        return None
    held_out = _held_out(trials)
    if trials_remaining(spec, len(trials)) and held_out.verdict == "different":
        names = {trial.run_id: f"trial {trial.number}" for trial in trials}
        note = held_out.note(spec.metric.name, names, "trials")
        return f"The next point cannot be chosen. {note}"
    failed = _failed(trials, reopened_at)
    if spec.max_failed is not None and len(failed) > spec.max_failed:
        return (
            f"{len(failed)} trials failed, and max_failed is {spec.max_failed}; "
            f"the last: {_failure_text(failed[-1])}"
        )
    alike = _failed_alike(trials, reopened_at)
    if alike is None:
        return None
    return f"all {len(failed)} trials that ended failed in the same way: {_failure_text(alike)}"


def _failed(trials: Sequence[TrialState], reopened_at: float) -> list[TrialState]:
    failed = [
        trial
        for trial in trials
        if trial.state is RunState.FAILED and (trial.ended_at or 0.0) > reopened_at
    ]
    return sorted(failed, key=lambda trial: (trial.ended_at or 0.0, trial.number))


def _failed_alike(trials: Sequence[TrialState], reopened_at: float) -> TrialState | None:
    """Return the newest failure, if every trial that started failed by one cause."""
    failed = _failed(trials, reopened_at)
    causes = {trial.cause for trial in failed}
    if len(failed) < SAME_CAUSE or len(causes) > 1 or causes & _OF_THE_TRIAL:
        return None
    better = {RunState.COMPLETED, RunState.PRUNED}
    for trial in trials:
        if trial.state in better or (trial.state not in ENDED and trial.reports):
            return None
    return failed[-1]


def _failure_text(trial: TrialState) -> str:
    text = (trial.reason or trial.cause or "no reason was given").strip()
    return f"{trial.cause}: {text}" if trial.cause and trial.cause not in text else text


def _prunes(spec: SweepSpec, trials: Sequence[TrialState]) -> tuple[PruneTrial, ...]:
    rule = spec.pruning
    if rule is None or not any(_prunable(trial) for trial in trials):
        return ()
    total = max((trial.total_steps or 0 for trial in trials), default=0)
    verdicts: dict[int, Prune] = {
        verdict.number: verdict
        for group in _comparable(spec, trials)
        for verdict in prune(
            rule,
            [_trial(trial, {}, rule) for trial in group],
            goal=spec.metric.goal,
            total_steps=total,
        )
    }
    return tuple(
        PruneTrial(
            trial.run_id, trial.attempt, f"{spec.metric.name}, {verdicts[trial.number].message}"
        )
        for trial in trials
        if trial.number in verdicts and _prunable(trial)
    )


def _held_out(trials: Sequence[TrialState]) -> HeldOut:
    """Return the held-out sets of the trials whose values the search uses."""
    gone = {RunState.FAILED, RunState.CANCELLED}
    reporting = [trial for trial in trials if trial.reports and trial.state not in gone]
    return HeldOut.of({trial.run_id: trial.held_out for trial in reporting})


def _comparable(spec: SweepSpec, trials: Sequence[TrialState]) -> list[Sequence[TrialState]]:
    """Return all trials once per held-out set and rung, without the reports of the others.

    All stay in the list, since Hyperband uses a trial's position in it.
    """
    differ, campaign = _held_out(trials).verdict == "different", spec.campaign
    keys = [
        (trial.held_out if differ else None, campaign and campaign_record.rung_of(campaign, trial))
        for trial in trials
    ]
    return [
        [
            one if own == key else replace(one, reports=())
            for one, own in zip(trials, keys, strict=True)
        ]
        for key in dict.fromkeys(key for key, one in zip(keys, trials, strict=True) if one.reports)
    ]


def _prunable(trial: TrialState) -> bool:
    """Return whether a report may prune its trial: after its last step nothing is left to save."""
    total = trial.total_steps
    at_end = bool(trial.reports) and total is not None and trial.reports[-1].step >= total
    return trial.state is RunState.RUNNING and trial.desired is Desired.RUN and not at_end


def _trial(
    trial: TrialState, parameters: Mapping[str, Any], rule: Pruning | None = None
) -> SearchTrial:
    reports = trial.reports
    if rule is not None and rule.rung_factor is not None:
        reports = at_rungs(reports, rule.min_steps, rule.rung_factor)
    state: TrialKind = "failed" if trial.state in ENDED else "running"
    if trial.state is RunState.COMPLETED:
        state = "completed"
    elif trial.state is RunState.PRUNED or trial.desired is Desired.PRUNE:
        state = "pruned"
    more = (reports, trial.total_steps, trial.planned)
    return SearchTrial(trial.number, parameters, state, *more)


def at_rungs(reports: Sequence[TrialReport], first: int, reduction: int) -> tuple[TrialReport, ...]:
    """Return the reports that successive halving uses: the first at or after each rung.

    At other reports it does nothing, slowly.
    """
    kept: list[TrialReport] = []
    rung = first
    for report in reports:
        if report.step < rung and math.isfinite(report.value):
            continue
        kept.append(report)
        while rung <= report.step:
            rung *= reduction
    if reports and (not kept or kept[-1] is not reports[-1]):
        kept.append(reports[-1])
    return tuple(kept)
