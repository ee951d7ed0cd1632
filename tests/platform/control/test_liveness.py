"""Unreachable, stalled, or merely slow."""

from __future__ import annotations

import pytest

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.control.liveness import Liveness, Thresholds, liveness, median_step_s, stalled

LIMITS = Thresholds(unreachable_s=20, stalled_factor=10, stalled_floor_s=180)


def look(contact, step, median):
    return liveness(
        since_contact_s=contact, since_step_s=step, median_step_s=median, thresholds=LIMITS
    )


def test_no_heartbeat_means_unreachable_regardless_of_steps():
    assert look(21, 1, 1) is Liveness.UNREACHABLE
    assert look(21, None, None) is Liveness.UNREACHABLE


def test_heartbeats_without_steps_are_stalled_relative_to_the_step_time():
    assert look(1, 181, 1.0) is Liveness.STALLED
    assert look(1, 181, 60.0) is Liveness.OK
    assert look(1, 601, 60.0) is Liveness.STALLED


def test_step_time_is_a_median_so_one_long_save_does_not_hide_a_stall():
    history = [(0.0, 0), (10.0, 10), (20.0, 20), (320.0, 21), (330.0, 31), (340.0, 41)]
    assert median_step_s(history) == pytest.approx(1.0)
    assert median_step_s(history[:2]) is None


def test_median_step_time_needs_three_points_and_ignores_repeated_steps():
    assert median_step_s([(0.0, 0), (10.0, 10), (20.0, 20)]) == pytest.approx(1.0)
    assert median_step_s([(0.0, 0), (10.0, 10), (15.0, 10), (25.0, 20)]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("limit", "step", "contact", "is_stalled"),
    [
        (60.0, 62.0, 1.0, True),
        (60.0, 60.0, 1.0, False),
        (None, 1e6, 1.0, False),
        # Before its first step.
        (60.0, None, 1.0, False),
        # Silent: nobody knows whether it steps.
        (60.0, 300.0, 61.0, False),
    ],
)
def test_stall_limit_counts_heartbeats_without_a_step(limit, step, contact, is_stalled):
    found = stalled(limit_s=limit, since_step_s=step, since_contact_s=contact)
    assert found == ("no step for 62 s: stall_limit_s is 60" if is_stalled else None)


def test_copy_of_a_checkpoint_is_no_stall_and_its_end_begins_the_count():
    now = 0.0
    table = HeartbeatTable(lambda: now)
    for now in (1.0, 2.0, 3.0):
        table.heartbeat("r-1", step=int(now), elapsed_s=now)
    for now in (300.0, 600.0):
        table.heartbeat("r-1", step=3, elapsed_s=now, copying=True)
        assert table.since_step_s("r-1") == 0.0
        assert table.liveness("r-1", LIMITS) is Liveness.OK
    now = 781.0
    table.heartbeat("r-1", step=3, elapsed_s=now)
    assert table.since_step_s("r-1") == 181.0
    assert table.liveness("r-1", LIMITS) is Liveness.STALLED


def test_a_run_before_its_first_steps_is_not_stalled():
    assert look(1, None, None) is Liveness.OK
    assert look(1, 10_000, None) is Liveness.OK
