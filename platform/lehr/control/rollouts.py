"""Decide what a rollout does next: submit a run, pass a stage, or stop.

Pure: decided from the recorded stages, so the decision after a restart is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lehr.analysis.gates import TITLES, Evidence, Judgement, judge
from lehr.control.forks import fork_spec
from lehr.control.lifecycle import RunState
from lehr.errors import SpecError
from lehr.specs.gates import GateName
from lehr.specs.run import RunSpec
from lehr.specs.stages import PlannedStage, StageRunRole

EXACT_RESUME = "exact_resume"
"""The one gate that needs more runs: it is judged after all others have passed."""


@dataclass(frozen=True)
class StageRun:
    run_id: str
    state: RunState
    delivered: bool = True
    """All streams of its newest attempt have arrived; until then its end is not judged."""
    cause: str | None = None
    reason: str | None = None

    @property
    def over(self) -> bool:
        return self.state.ended and self.delivered


@dataclass(frozen=True)
class StageState:
    number: int
    name: str
    roles: tuple[StageRunRole, ...]  # The runs that it may need, in order; the first is ``train``.
    gates: tuple[str, ...]  # The gates that are switched on.
    outcome: str | None = None  # passed, failed or cancelled; None before that.
    runs: Mapping[StageRunRole, StageRun] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """By gate: passed, failed or not_judged."""


@dataclass(frozen=True)
class Submit:
    stage: int
    role: StageRunRole


@dataclass(frozen=True)
class Pass:
    stage: int


@dataclass(frozen=True)
class Fail:
    stage: int
    gate: str | None  # The gate that failed; None if a run ended badly and no gate explains it.
    run: StageRun | None = None


Act = Submit | Pass | Fail


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint from which a stage's resumed run continues."""

    run_id: str  # The run that saved it.
    run_name: str
    run_spec: Mapping[str, Any]  # Spec of that run.
    attempt: int
    step: int
    digest: str | None
    path: str  # The checkpoint's folder.


@dataclass(frozen=True)
class OpenRollout:
    """A rollout with its stages and with the evidence for its current one."""

    id: str
    planned: Sequence[PlannedStage]
    stages: Sequence[StageState]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By gate of the current stage that failed: what was seen, and what was expected."""
    evidence: Evidence | None = None  # Of the current stage, if gates of it can be judged now.
    resume_point: ResumePoint | None = None
    """Where the current stage's resumed run would continue, if it is the next one."""


@dataclass(frozen=True)
class RecordVerdicts:
    rollout_id: str
    stage: int
    judgements: Sequence[Judgement]


@dataclass(frozen=True)
class SubmitStageRun:
    rollout_id: str
    stage: int
    role: StageRunRole
    spec: RunSpec
    resumes: ResumePoint | None = None


@dataclass(frozen=True)
class PassStage:
    rollout_id: str
    stage: int
    name: str


@dataclass(frozen=True)
class FailRollout:
    rollout_id: str
    stage: int
    reason: str


Action = RecordVerdicts | SubmitStageRun | PassStage | FailRollout


def current(stages: Sequence[StageState]) -> StageState | None:
    """Return the current stage; None once the last has passed, or one has failed."""
    for stage in stages:
        if stage.outcome is None:
            return stage
        if stage.outcome != "passed":
            return None
    return None


def actions(rollout: OpenRollout) -> list[Action]:
    """Return the next action: record verdicts, submit a run, pass a stage, or stop.

    It is one at a time, because each changes what the next one depends on.
    """
    now = current(rollout.stages)
    if now is None:
        return []
    stage = rollout.planned[now.number - 1]
    judgements = _judge(now, stage, rollout.evidence)
    if judgements:
        return [RecordVerdicts(rollout.id, now.number, judgements)]
    act = decide(rollout.stages)
    if act is None:
        return []
    if isinstance(act, Pass):
        return [PassStage(rollout.id, act.stage, now.name)]
    if isinstance(act, Fail):
        return [FailRollout(rollout.id, act.stage, _why(act, rollout.reasons))]
    return [_submit(rollout, stage, now, act)]


def _judge(now: StageState, stage: PlannedStage, evidence: Evidence | None) -> list[Judgement]:
    if evidence is None:
        return []
    unjudged = [name for name in now.gates if name not in now.verdicts]
    judged = [judge(cast("GateName", name), stage, evidence) for name in unjudged]
    return [one for one in judged if one is not None]


def _why(act: Fail, reasons: Mapping[str, str]) -> str:
    if act.gate is not None:
        return f"{TITLES[cast('GateName', act.gate)]}: {reasons[act.gate]}"
    assert act.run is not None
    why = act.run.reason or act.run.cause or "no reason was given"
    return f"its run {act.run.state.value}: {why}"


def _submit(
    rollout: OpenRollout, stage: PlannedStage, now: StageState, act: Submit
) -> SubmitStageRun | FailRollout:
    if act.role != "resumed":
        return SubmitStageRun(rollout.id, act.stage, act.role, stage.runs[act.role])
    point = rollout.resume_point
    if point is None:
        whole = stage.run_name(stage.whole)
        why = f"{whole} has no checkpoint at step {stage.middle:,} to go on from"
        return FailRollout(rollout.id, now.number, why)
    changes = {"name": stage.run_name("resumed"), "tracking": {}}
    try:
        spec = fork_spec(dict(point.run_spec), changes, step=point.step)
    except SpecError as error:
        why = f"the run that resumes cannot be created: {error}"
        return FailRollout(rollout.id, now.number, why)
    return SubmitStageRun(rollout.id, act.stage, act.role, spec, point)


def decide(stages: Sequence[StageState]) -> Act | None:
    """Return the next action; None while there is only waiting."""
    stage = current(stages)
    if stage is None:
        return None
    failed = next((gate for gate in stage.gates if stage.verdicts.get(gate) == "failed"), None)
    if failed is not None:
        return Fail(stage.number, failed)
    train = stage.runs.get("train")
    if train is None:
        return Submit(stage.number, "train")
    if train.state.ended and train.state is not RunState.COMPLETED:
        return Fail(stage.number, None, train) if train.delivered else None
    unjudged = [gate for gate in stage.gates if gate not in stage.verdicts]
    if any(gate != EXACT_RESUME for gate in unjudged) or not train.over:
        return None
    if EXACT_RESUME in unjudged:
        return _next_of_the_pair(stage)
    return Pass(stage.number)


def wants_evidence(stage: StageState) -> bool:
    """Return whether a gate of the stage is still to be judged by its first run."""
    return "train" in stage.runs and any(
        gate not in stage.verdicts for gate in stage.gates if gate != EXACT_RESUME
    )


def pair_is_over(stage: StageState) -> bool:
    """Return whether the runs that exact_resume compares have all ended, or one of them badly."""
    if EXACT_RESUME not in stage.gates or EXACT_RESUME in stage.verdicts:
        return False
    further = [stage.runs.get(role) for role in stage.roles[1:]]
    bad = any(run is not None and run.over and not _completed(run) for run in further)
    return bad or all(run is not None and run.over for run in further)


def _next_of_the_pair(stage: StageState) -> Submit | None:
    for role in stage.roles[1:]:
        run = stage.runs.get(role)
        if run is None:
            return Submit(stage.number, role)
        if not run.over or not _completed(run):
            return None  # The gate judges a run that ended badly.
    return None


def _completed(run: StageRun) -> bool:
    return run.state is RunState.COMPLETED
