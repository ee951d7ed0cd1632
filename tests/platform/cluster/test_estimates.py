"""How long attempts still take, and how long that is believed."""

from __future__ import annotations

import pytest

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.run_values import KEPT_S, Estimates
from lehr.specs.program import Program
from lehr.specs.run import RunSpec
from lehr_testing import seeding
from lehr_testing.stores import begin, fresh_store


class Case:
    def __init__(self, store) -> None:
        self.now = 0.0
        self.heartbeats = HeartbeatTable(lambda: self.now)
        self.estimates = Estimates(self.heartbeats)
        self.run = store.runs.create(seeding.run_spec("r", steps=1000))
        self.attempt = begin(store, self.run.id)

    def step(self, step: int, *, after_s: float) -> None:
        self.now += after_s
        self.heartbeats.heartbeat(self.attempt.id, step=step, elapsed_s=self.now)

    def remaining_s(self) -> float | None:
        self.estimates.refresh()
        return self.estimates.remaining_s(self.attempt, self.run)


@pytest.fixture
def case(tmp_path):
    with fresh_store(tmp_path / "home") as store:
        yield Case(store)


def test_estimate_is_steps_times_their_usual_time(case):
    case.step(10, after_s=40.0)
    for number in range(11, 20):
        case.step(number, after_s=2.0)
    assert case.remaining_s() == pytest.approx((1000 - 19) * 2.0)


def test_estimate_is_kept_for_a_while(case):
    assert case.remaining_s() is None
    for number in range(11, 20):
        case.step(number, after_s=1.0)
    assert case.remaining_s() is None
    case.now += KEPT_S
    assert case.remaining_s() == pytest.approx((1000 - 19) * 1.0)


def test_program_of_a_user_is_estimated_by_its_own_number_of_steps(case):
    program = Program(module="train", args={"max_iters": 100}, steps_arg="max_iters")
    case.run.spec = RunSpec(name="r", trainer=program).model_dump(mode="json")
    for number in range(11, 20):
        case.step(number, after_s=2.0)
    assert case.remaining_s() == pytest.approx((100 - 19) * 2.0)


@pytest.mark.parametrize(
    "spec",
    [{}, {"train": None}, {"trainer": {"steps": "many"}}, {"train": {"steps": 1e999}}, ["x"]],
)
def test_spec_that_cannot_be_read_has_no_estimate(case, spec):
    case.run.spec = spec
    for number in range(11, 20):
        case.step(number, after_s=2.0)
    assert case.remaining_s() is None
