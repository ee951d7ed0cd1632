"""The next step of a rollout, decided from its recorded stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.control.lifecycle import RunState
from lehr.control.rollouts import (
    EXACT_RESUME,
    Pass,
    StageRun,
    StageState,
    Submit,
    decide,
    pair_is_over,
    wants_evidence,
)

GATES = ("first_loss", "falling_loss", EXACT_RESUME)
NAMES = ("cpu", "one_gpu", "two_gpus", "all")
DONE = StageRun("r", RunState.COMPLETED)


def fresh(*, pair: tuple[str, ...] = ("resumed",), stages: int = 4) -> list[StageState]:
    """The last stage has no pair, as in a rollout."""
    return [
        StageState(
            number=number,
            name=NAMES[number - 1],
            roles=("train", *(pair if number < stages else ())),
            gates=GATES if pair and number < stages else GATES[:2],
        )
        for number in range(1, stages + 1)
    ]


def test_pair_of_runs_starts_only_after_the_other_gates_passed():
    [first, *rest] = fresh(pair=("whole", "resumed"))
    first = replace(first, runs={"train": DONE}, verdicts={"first_loss": "passed"})
    assert decide([first, *rest]) is None
    first = replace(first, verdicts={"first_loss": "passed", "falling_loss": "not_judged"})
    assert decide([first, *rest]) == Submit(1, "whole")
    first = replace(first, runs={"train": DONE, "whole": DONE})
    assert decide([first, *rest]) == Submit(1, "resumed")
    first = replace(first, runs={**first.runs, "resumed": DONE})
    assert pair_is_over(first)
    assert decide([first, *rest]) is None
    first = replace(first, verdicts={**first.verdicts, EXACT_RESUME: "passed"})
    assert decide([first, *rest]) == Pass(1)
    assert not wants_evidence(first)


def test_every_gate_except_exact_resume_needs_evidence():
    [first, *_] = fresh()
    assert not wants_evidence(first)
    begun = replace(first, runs={"train": DONE})
    assert wants_evidence(replace(begun, verdicts={EXACT_RESUME: "passed"}))
    assert wants_evidence(replace(begun, verdicts={"first_loss": "passed"}))
    judged = replace(begun, verdicts={"first_loss": "passed", "falling_loss": "not_judged"})
    assert not wants_evidence(judged)


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING, RunState.COMPLETED])
def test_pair_ends_when_both_runs_ended_or_one_failed(state):
    [first, *_] = fresh(pair=("whole", "resumed"))
    going = replace(first, runs={"train": DONE, "whole": DONE, "resumed": StageRun("s", state)})
    assert pair_is_over(going) == (state is RunState.COMPLETED)
    late = StageRun("s", RunState.COMPLETED, delivered=False)
    assert not pair_is_over(replace(first, runs={**going.runs, "resumed": late}))
    assert not pair_is_over(replace(first, runs={"train": DONE}))
    assert not pair_is_over(replace(first, runs={"train": DONE, "whole": DONE}))
    failed = StageRun("s", RunState.FAILED)
    assert pair_is_over(replace(first, runs={"train": DONE, "whole": failed}))
    assert not pair_is_over(replace(going, verdicts={EXACT_RESUME: "passed"}))
    assert not pair_is_over(replace(going, gates=GATES[:2]))


def test_the_second_of_a_pair_waits_for_the_first_to_complete():
    [first, *rest] = fresh(pair=("whole", "resumed"))
    passed = {"first_loss": "passed", "falling_loss": "passed"}
    for state in (RunState.RUNNING, RunState.FAILED):
        runs = {"train": DONE, "whole": StageRun("w", state)}
        assert decide([replace(first, runs=runs, verdicts=passed), *rest]) is None
