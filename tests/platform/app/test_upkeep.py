"""Repeated small tasks go on after an error; freed memory goes back to the system."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lehr.app.upkeep import Upkeep, give_back


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


BLOCK = 100_000
"""Below glibc's limit for blocks that go back by themselves."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def kept():
    """Return the resident memory while 64 MB are freed, and living blocks lie between them.

    Only the highest block would go back by itself, so one living block after the last is not enough:
    it may lie in an older gap. A block of zeros is not written, so it need not be resident.
    """
    blocks = [b"x" * BLOCK for _ in range(640)]
    living = blocks[::20]
    del blocks
    yield resident()
    del living


glibc = pytest.mark.skipif(
    "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="another C library"
)


@glibc
def test_freed_blocks_are_returned(kept):
    give_back()
    assert resident() < kept - 32 * (1 << 20)
