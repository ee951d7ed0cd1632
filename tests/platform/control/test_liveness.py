"""Unreachable, stalled, or merely slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.control.liveness import (
    ACCEPTED_WAIT_S,
    HEARTBEATS_PER_S,
    LONGEST_S,
    REPORTS_PER_S,
    SENDS_PER_S,
    UNREACHABLE_S,
    Liveness,
    liveness,
    median_step_s,
    pace,
    report_s,
    stretched,
)
from lehr.control.reconcile import OpenAttempt, stalled


def look(contact, step, median):
    return liveness(since_contact_s=contact, since_step_s=step, median_step_s=median)


def test_no_heartbeat_means_unreachable_regardless_of_steps():
    assert look(21, 1, 1) is Liveness.UNREACHABLE
    assert look(21, None, None) is Liveness.UNREACHABLE


def test_heartbeats_without_steps_are_stalled_relative_to_the_step_time():
    assert look(1, 181, 1.0) is Liveness.STALLED
    assert look(1, 181, 60.0) is Liveness.OK
    assert look(1, 601, 60.0) is Liveness.STALLED
    assert look(1, 10_000, None) is Liveness.OK


def test_step_time_is_a_median_so_one_long_save_does_not_hide_a_stall():
    history = [(0.0, 0), (10.0, 10), (20.0, 20), (320.0, 21), (330.0, 31), (340.0, 41)]
    assert median_step_s(history) == pytest.approx(1.0)
    assert median_step_s(history[:2]) is None


def test_median_step_time_ignores_repeated_steps():
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
    seconds = {"stall_limit_s": limit, "since_step_s": step, "since_contact_s": contact}
    why = stalled(OpenAttempt("r-1", ("n1",), current=True, **seconds))
    assert why == ("no step for 62 s: stall_limit_s is 60" if is_stalled else None)


def test_copy_of_a_checkpoint_is_no_stall_and_its_end_begins_the_count():
    now = 0.0
    table = HeartbeatTable(lambda: now)
    for now in (1.0, 2.0, 3.0):
        table.heartbeat("r-1", step=int(now), elapsed_s=now)
    for now in (300.0, 600.0):
        table.heartbeat("r-1", step=3, elapsed_s=now, copying=True)
        assert table.since_step_s("r-1") == 0.0
        assert table.liveness("r-1") is Liveness.OK
    now = 781.0
    table.heartbeat("r-1", step=3, elapsed_s=now)
    assert table.since_step_s("r-1") == 181.0
    assert table.liveness("r-1") is Liveness.STALLED


def test_1500_workers_are_asked_for_900_requests_a_second():
    asked = pace(1500)
    assert (asked.heartbeat_s, asked.send_s) == (5.0, 2.5)
    assert 1500 / asked.heartbeat_s + 1500 / asked.send_s == 900


@given(st.integers(0, 10**9))
def test_all_workers_together_stay_under_the_budget_as_long_as_none_waits_too_long(senders):
    asked = pace(senders)
    assert asked.heartbeat_s == LONGEST_S or senders / asked.heartbeat_s <= HEARTBEATS_PER_S * 1.001
    assert asked.send_s == LONGEST_S or senders / asked.send_s <= SENDS_PER_S * 1.001


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_workers_never_send_more_often(one, other):
    fewer, more = pace(min(one, other)), pace(max(one, other))
    assert fewer.heartbeat_s <= more.heartbeat_s
    assert fewer.send_s <= more.send_s


@given(st.floats(0.5, LONGEST_S), st.floats(0, 1e9))
def test_pauses_get_longer_while_requests_wait_for_the_server(pause_s, waited_s):
    assert stretched(pause_s, 0.0) == pause_s
    assert pause_s <= stretched(pause_s, waited_s) <= LONGEST_S
    assert stretched(2.0, ACCEPTED_WAIT_S) == 4.0


@given(st.integers(0, 10**9))
def test_a_late_heartbeat_does_not_make_an_attempt_unreachable(senders):
    """One may be lost."""
    assert 2 * pace(senders).heartbeat_s <= UNREACHABLE_S


@given(st.integers(0, 10**9))
def test_all_agents_together_stay_under_the_budget_as_long_as_none_waits_too_long(nodes):
    assert 2.0 <= report_s(nodes) <= LONGEST_S
    assert report_s(nodes) == LONGEST_S or nodes / report_s(nodes) <= REPORTS_PER_S * 1.001
