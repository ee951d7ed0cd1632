"""Decide which checkpoints are evaluated beside their training, and which evaluations end with it.

Of one run at most one evaluation of a name waits or runs at a time. The next one takes the newest
checkpoint that has none yet. So they never pile up, the last checkpoint always has its turn, and
those that retention removes before theirs are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.control.saved_points import SavedPoint
from lehr.specs.evaluations import evaluations_of, run_of
from lehr.specs.run import RunSpec

FAILURES = 3  # After so many in a row, an evaluation is not tried on further checkpoints.


class Evaluates(NamedTuple):
    """What a run evaluates; as text in its row, where it is unique."""

    run_id: str
    attempt: int  # That has saved the checkpoint.
    step: int
    name: str  # Of the evaluation.

    @classmethod
    def parse(cls, text: str) -> Self:
        run_id, attempt, step, name = text.split("/")
        return cls(run_id, int(attempt), int(step), name)

    def __str__(self) -> str:
        return "/".join(map(str, self))


class EvaluationRun(NamedTuple):
    run_id: str
    of: Evaluates
    state: RunState


class EvaluatedRun(NamedTuple):
    """A run with evaluations."""

    run_id: str
    spec: RunSpec
    state: RunState
    desired: Desired
    archived: bool
    points: Sequence[SavedPoint]  # Its checkpoints that can be read.
    evaluations: Sequence[EvaluationRun]  # In order of submission.


class Evaluate(NamedTuple):
    of: Evaluates
    path: str  # Of the checkpoint, relative to the run directory.
    spec: RunSpec


class CancelEvaluation(NamedTuple):
    of: Evaluates
    run_id: str


Action = Evaluate | CancelEvaluation


def actions(run: EvaluatedRun) -> Iterable[Action]:
    ends = run.archived or run.state in {RunState.CANCELLED, RunState.PRUNED}
    there = {(one.attempt, one.step) for one in run.points}
    for one in run.evaluations:
        # Retention may remove a checkpoint before its trainer knows that it is needed.
        gone = one.state is RunState.QUEUED and one.of[1:3] not in there
        if gone or (ends and one.state not in ENDED):
            yield CancelEvaluation(one.of, one.run_id)
    if ends or run.desired in {Desired.CANCEL, Desired.PRUNE}:
        return
    for evaluation in evaluations_of(run.spec):
        own = [one for one in run.evaluations if one.of.name == evaluation.name]
        if any(one.state not in ENDED for one in own) or fails([one.state for one in own]):
            continue
        known = {(one.of.attempt, one.of.step) for one in own}
        if new := [one for one in run.points if (one.attempt, one.step) not in known]:
            point = max(new, key=lambda one: (one.attempt, one.step))
            of = Evaluates(run.run_id, point.attempt, point.step, evaluation.name)
            yield Evaluate(of, point.path, run_of(run.spec, evaluation, point.step))


def awaited(run: EvaluatedRun, name: str) -> bool:
    """Return whether an evaluation of this name waits, runs or is to be submitted."""
    live = {one.of.name for one in run.evaluations if one.state not in ENDED}
    due = {one.of.name for one in actions(run) if isinstance(one, Evaluate)}
    return name in live | due


def fails(states: Sequence[RunState]) -> bool:
    """Return whether the newest of these runs of one evaluation have all failed."""
    return len(states) >= FAILURES and set(states[-FAILURES:]) == {RunState.FAILED}
