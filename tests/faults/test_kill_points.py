"""Every process of the control plane is killed at every named point of a run's life.

Before and after each commit, each call through Ray and each acknowledgement: the server is
started again, the run comes to the end that it should, and the history breaks no rule.
"""

from __future__ import annotations

import itertools

import pytest

from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.kill_points import POINTS, QUICK
from lehr_testing.faults.scenarios import COURSES
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_names = itertools.count(1)


@pytest.fixture
def server(fakes: FaultServer) -> FaultServer:
    """Yield the server, judged from here on."""
    fakes.begin()
    return fakes


def parameters():
    """The slow scenarios, which are the majority, in two groups with a server each."""
    for number, (scenario, point) in enumerate(POINTS):
        slow = (scenario, point) not in QUICK
        group = f"kill-points-{number % 2}" if slow else "fakes"
        marks = [pytest.mark.xdist_group(group), *([pytest.mark.faults] if slow else [])]
        yield pytest.param(scenario, point, marks=marks, id=f"{scenario} - {point}")


@pytest.mark.parametrize(("scenario", "point"), list(parameters()))
def test_a_kill_at_this_point_leaves_the_run_ended_correctly(
    server: FaultServer, scenario: str, point: str
):
    server.revive()
    server.cluster_ready()
    server.arm(point)
    try:
        COURSES[scenario](server, f"{scenario}-{next(_names)}")
        # What comes after the end that people see is reached a moment later.
        until(lambda: server.fired, within_s=30, what=f"somebody to reach {point!r}")
    finally:
        server.disarm()
    server.revive()
    server.verdict()


@pytest.mark.xdist_group("fakes")
def test_scenarios_end_as_expected_without_a_kill(server: FaultServer):
    """Without this the tests above would prove nothing."""
    server.disarm()
    before = server.restarts
    for scenario in ("run", "requeue"):
        COURSES[scenario](server, f"{scenario}-undisturbed")
    server.verdict()
    assert server.restarts == before
