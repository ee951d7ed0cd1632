"""The next step of a rollout, decided from its recorded stages."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from lehr_testing.properties import examples

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


class RandomRollout:
    """A rollout with random legal results of runs and gates; each decision is carried out."""

    def __init__(self, seed: int, *, stages: int, pair: tuple[str, ...]) -> None:
        self.chance = random.Random(seed)
        self.stages = fresh(pair=pair, stages=stages)
        self.ended: str | None = None
        self.submitted: list[tuple[int, str]] = []

    def change(self, number: int, **fields) -> None:
        self.stages[number - 1] = replace(self.stages[number - 1], **fields)

    def carry_out(self) -> bool:
        act = decide(self.stages)
        assert decide(self.stages) == act
        if act is None:
            return False
        stage = self.stages[act.stage - 1]
        # Never a stage whose predecessors have not all passed, never a run twice.
        assert all(one.outcome == "passed" for one in self.stages[: act.stage - 1])
        assert stage.outcome is None
        if isinstance(act, Submit):
            assert (act.stage, act.role) not in self.submitted
            assert "failed" not in stage.verdicts.values()
            self.submitted.append((act.stage, act.role))
            run = StageRun(f"{act.stage}{act.role}", RunState.QUEUED)
            self.change(act.stage, runs={**stage.runs, act.role: run})
        elif isinstance(act, Pass):
            assert set(stage.verdicts) == set(stage.gates)
            assert "failed" not in stage.verdicts.values()
            assert all(run.state is RunState.COMPLETED for run in stage.runs.values())
            self.change(act.stage, outcome="passed")
            if act.stage == len(self.stages):
                self.ended = "passed"
        else:
            self.change(act.stage, outcome="failed")
            self.ended = "failed"
        return True

    def advance(self) -> None:
        """Change one thing: the state of a run, or the verdict of a gate that can be judged."""
        stage = next(one for one in self.stages if one.outcome is None)
        live = [role for role, run in stage.runs.items() if not run.over]
        if live:
            role = self.chance.choice(live)
            run = stage.runs[role]
            if run.state.ended:
                run = replace(run, delivered=True)
            elif run.state is RunState.QUEUED:
                run = replace(run, state=RunState.RUNNING)
            else:
                new = self.chance.choices(
                    [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.QUEUED],
                    [12, 1, 1, 2],
                )[0]
                run = replace(run, state=new, delivered=not new.ended or self.chance.random() < 0.5)
            self.change(stage.number, runs={**stage.runs, role: run})
            return
        for gate in stage.gates:
            judged = gate not in stage.verdicts
            if judged and (gate != EXACT_RESUME or pair_is_over(stage)):
                bad = any(r.state is not RunState.COMPLETED for r in stage.runs.values())
                failing = gate == EXACT_RESUME and bad
                verdict = (
                    "failed"
                    if failing
                    else self.chance.choices(["passed", "not_judged", "failed"], [10, 3, 1])[0]
                )
                self.change(stage.number, verdicts={**stage.verdicts, gate: verdict})
                return


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 4),
    pair=st.sampled_from([(), ("resumed",), ("whole", "resumed")]),
)
def test_random_rollouts_end_and_never_skip_a_gate(seed, stages, pair):
    rollout = RandomRollout(seed, stages=stages, pair=pair)
    for _ in range(600):
        while rollout.ended is None and rollout.carry_out():
            pass
        if rollout.ended is not None:
            break
        rollout.advance()
    assert rollout.ended is not None
    assert decide(rollout.stages) is None
    begun = {number for number, _ in rollout.submitted}
    assert begun == set(range(1, max(begun) + 1))
    passed = [stage.outcome == "passed" for stage in rollout.stages]
    assert passed == sorted(passed, reverse=True)
    assert (rollout.ended == "passed") == all(passed)
