"""Freed memory goes back to the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.freed_memory import ARENAS, give_back

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


THREADS = 6
COUNT_ARENAS = f"""
import ctypes, sys, threading
from lehr.freed_memory import limit_arenas

if sys.argv[1] == "limited":
    assert limit_arenas()
meet = threading.Barrier({THREADS})

def allocate():
    meet.wait()
    blocks = [bytes(1000) for _ in range(1000)]
    meet.wait()
    del blocks

threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
[one.start() for one in threads]
[one.join() for one in threads]
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def arenas(*options: str) -> int:
    """Return how many arenas glibc itself reports after several threads have allocated."""
    command = [sys.executable, "-c", COUNT_ARENAS, *options]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return told.count("<heap nr=")


@glibc
def test_threads_share_the_few_arenas():
    assert arenas("unlimited") > ARENAS
    assert 1 <= arenas("limited") <= ARENAS
