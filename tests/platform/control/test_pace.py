"""How often workers and agents are asked to send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lehr.control.liveness import (
    ACCEPTED_WAIT_S,
    HEARTBEATS_PER_S,
    LONGEST_S,
    REPORTS_PER_S,
    SENDS_PER_S,
    Thresholds,
    pace,
    report_s,
    stretched,
)


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
    assert 2 * pace(senders).heartbeat_s <= Thresholds().unreachable_s


@given(st.integers(0, 10**9))
def test_all_agents_together_stay_under_the_budget_as_long_as_none_waits_too_long(nodes):
    assert 2.0 <= report_s(nodes) <= LONGEST_S
    assert report_s(nodes) == LONGEST_S or nodes / report_s(nodes) <= REPORTS_PER_S * 1.001
