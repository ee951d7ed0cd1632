"""Decide what a rollout does next: submit a run, pass a stage, or stop.

Pure: decided from the recorded stages, so the decision after a restart is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lehr.control.lifecycle import RunState
from lehr.specs.stages import StageRunRole

EXACT_RESUME = "exact_resume"
"""The one gate that needs more runs: it is judged after all others have passed."""


@dataclass(frozen=True)
class StageRun:
    """A run of a stage and its state."""

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
    """A stage as recorded."""

    number: int
    name: str
    roles: tuple[StageRunRole, ...]
    """The runs that it may need, in order; the first is ``train``."""
    gates: tuple[str, ...]
    """The gates that are switched on."""
    outcome: str | None = None
    """passed, failed or cancelled; None before that."""
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
    gate: str | None
    """The gate that failed; None if a run ended badly and no gate explains it."""
    run: StageRun | None = None


Act = Submit | Pass | Fail


def current(stages: Sequence[StageState]) -> StageState | None:
    """Return the current stage; None once the last has passed, or one has failed."""
    for stage in stages:
        if stage.outcome is None:
            return stage
        if stage.outcome != "passed":
            return None
    return None


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
