"""Schedules in closed form, and restarts under another schedule."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lehr_trainer.configs.schedule import ScheduleConfig, lr_factor


def test_cosine_matches_its_formula() -> None:
    schedule = ScheduleConfig(warmup_steps=10, min_lr_ratio=0.1)
    assert [lr_factor(schedule, s, 110) for s in (1, 5, 10)] == [0.1, 0.5, 1.0]
    for step in (11, 35, 60, 109):
        want = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert lr_factor(schedule, step, 110) == pytest.approx(want)
    assert lr_factor(schedule, 110, 110) == pytest.approx(0.1)


def test_wsd_has_warmup_plateau_and_decay() -> None:
    schedule = ScheduleConfig(name="wsd", warmup_steps=10, decay_steps=20, min_lr_ratio=0.0)
    assert {lr_factor(schedule, s, 100) for s in range(10, 81)} == {1.0}
    assert [lr_factor(schedule, s, 100) for s in (81, 90, 99, 100)] == pytest.approx(
        [0.95, 0.5, 0.05, 0.0]
    )
    sqrt = schedule.model_copy(update={"decay_shape": "sqrt"})
    assert lr_factor(sqrt, 85, 100) == pytest.approx(0.5)


def test_constant_stays_at_the_peak() -> None:
    schedule = ScheduleConfig(name="constant", warmup_ratio=0.1)
    assert [lr_factor(schedule, s, 100) for s in (1, 10, 50, 100)] == [0.1, 1.0, 1.0, 1.0]


@given(
    st.sampled_from(["cosine", "constant", "wsd"]),
    st.integers(1, 400), st.integers(0, 50), st.integers(0, 50), st.floats(0, 1),
)  # fmt: skip
def test_factor_is_between_0_and_1_and_never_rises_after_warmup(
    name, steps, warmup, decay, least
) -> None:
    schedule = ScheduleConfig(
        name=name,
        warmup_steps=warmup,
        min_lr_ratio=least,
        decay_steps=decay if name == "wsd" else None,
    )
    factors = [lr_factor(schedule, s, steps) for s in range(1, steps + 1)]
    assert all(0 <= f <= 1 for f in factors)
    after = factors[warmup:]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(after))


def test_a_restart_runs_the_new_schedule_over_the_steps_that_remain() -> None:
    fresh = ScheduleConfig(warmup_steps=5)
    restarted = ScheduleConfig(warmup_steps=5, starts_after=300)
    assert [lr_factor(restarted, 300 + s, 400) for s in range(1, 101)] == [
        lr_factor(fresh, s, 100) for s in range(1, 101)
    ]


def test_restart_can_warm_up_from_the_old_rate() -> None:
    old = ScheduleConfig(warmup_steps=0)
    left_at = lr_factor(old, 200, 200)
    new = ScheduleConfig(name="wsd", warmup_steps=10, warmup_from=left_at, starts_after=200)
    assert lr_factor(new, 200, 400) == pytest.approx(left_at)
    assert lr_factor(new, 205, 400) == pytest.approx((left_at + 1) / 2)
    assert lr_factor(new, 210, 400) == 1.0


def test_no_warmup_starts_at_the_peak() -> None:
    assert lr_factor(ScheduleConfig(warmup_steps=0, name="constant"), 1, 10) == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup_steps": 20}, "warmup takes 20 steps, but it has only 10"),
        ({"name": "wsd", "warmup_steps": 6, "decay_steps": 6}, "take 12 steps, but it has only 10"),
        ({"starts_after": 10}, "starts_after 10 is not before the run's last step, 10"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**values).check_fits(10)


def test_steps_and_ratio_together_are_refused() -> None:
    with pytest.raises(ValidationError, match="decay_steps or decay_ratio"):
        ScheduleConfig(name="wsd", decay_steps=1, decay_ratio=0.1)
