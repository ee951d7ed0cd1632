"""The moment of the next tick."""

from __future__ import annotations

import math
import threading

from lehr.cluster.heartbeats import Alarm


def test_earliest_moment_counts() -> None:
    now = [100.0]
    alarm = Alarm(lambda: now[0])
    assert alarm.due == math.inf
    alarm.within(5.0)
    alarm.within(10.0)
    assert alarm.due == 105.0
    alarm.within(1.0)
    assert alarm.due == 101.0
    alarm.clear()
    assert alarm.due == math.inf


def test_moment_that_has_passed_is_due_at_once() -> None:
    now = [100.0]
    alarm = Alarm(lambda: now[0])
    alarm.within(-3.0)
    assert alarm.due == 100.0
    alarm.wait()


def test_waiting_thread_is_woken_by_an_earlier_moment() -> None:
    """A later one is set already, and the thread waits for it."""
    alarm = Alarm()
    alarm.within(3600.0)
    waiter = threading.Thread(target=alarm.wait, daemon=True)
    waiter.start()
    alarm.within(0.0)
    waiter.join(timeout=30)
    assert not waiter.is_alive()
