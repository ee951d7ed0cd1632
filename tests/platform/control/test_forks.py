"""The spec of a fork: inherited fields and rejected changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lehr.control.forks import choose, fork_spec
from lehr.errors import NotFound, SpecError
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC


@dataclass(frozen=True)
class Point:
    attempt: int
    step: int


def source(*changes: str) -> dict:
    return load_spec(RUN_SPEC, list(changes)).model_dump(mode="json")


def test_error_lists_the_last_ten_checkpoints():
    with pytest.raises(NotFound) as caught:
        choose("a", [Point(1, step) for step in range(1, 13)], 99)
    assert caught.value.hint.endswith("It has: ..., 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.")
    with pytest.raises(NotFound) as caught:
        choose("a", [Point(1, step) for step in range(1, 11)], 99)
    assert caught.value.hint.endswith("It has: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.")


@pytest.mark.parametrize("field", ["warmup_ratio", "decay_ratio"])
def test_unrelated_change_keeps_the_schedule_of_the_source(field):
    given = ["train.schedule.name=wsd", f"train.schedule.{field}=0.1"]
    made = fork_spec(source(*given), ["train.seed=3"], step=10)
    assert getattr(made.train.schedule, field) == 0.1


def test_fork_of_a_program_without_a_number_of_steps_may_start_at_any_step():
    program = {"module": "mine.train", "args": {"epochs": 3}}
    spec = load_spec({"name": "a", "trainer": program}).model_dump(mode="json")
    assert fork_spec(spec, ["trainer.args.epochs=4"], step=10**6).trainer.args == {"epochs": 4}
    with pytest.raises(SpecError, match="nothing would be left to train"):
        fork_spec(spec, ["trainer.steps=5"], step=10)


def test_every_problem_names_the_field_that_cannot_change():
    changes = ["train.steps=10", "train.model.hidden_size=256", "train.optimizer.name=muon"]
    with pytest.raises(SpecError) as caught:
        fork_spec(source(), changes, step=10)
    paths = ["train.steps", "train.model.hidden_size", "train.optimizer.name"]
    assert [problem.path for problem in caught.value.problems] == paths
