"""A task that is repeated until the process stops it."""

from __future__ import annotations

import threading

from lehr.app.upkeep import Upkeep


def test_task_is_repeated_after_an_error_until_it_is_stopped(caplog):
    calls = threading.Semaphore(0)
    failing = iter([OSError(28, "No space left on device"), ValueError("odd")])

    def act():
        calls.release()
        for error in failing:
            raise error

    upkeep = Upkeep("rotation", act, every_s=0.01)
    upkeep.start()
    for _ in range(4):
        assert calls.acquire(timeout=30)
    upkeep.stop()
    assert [entry.getMessage() for entry in caplog.records] == ["rotation failed"] * 2
    while calls.acquire(blocking=False):
        pass
    assert not calls.acquire(timeout=0.1)
