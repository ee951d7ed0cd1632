"""The queue over thousands of random histories of clusters, gangs, sweeps and projects."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from lehr_testing.queue_histories import histories, live_through

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]
HISTORIES = int(os.environ.get("LEHR_FAULTS_HISTORIES") or 3_000)


@settings(max_examples=HISTORIES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_random_histories_place_whole_gangs_once_and_lose_no_run(history):
    live_through(history)
