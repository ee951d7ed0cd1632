"""Freed memory goes back to the system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.freed_memory import give_back

BLOCK = 100_000
"""Below glibc's limit for blocks that go back by themselves."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def kept():
    """Return the resident memory while 64 MB are freed, and a living block lies above them."""
    blocks = [bytes(BLOCK) for _ in range(640)]
    last = bytes(BLOCK - 5_000)
    del blocks
    yield resident()
    del last


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="another C library")
def test_freed_blocks_are_returned(kept):
    give_back()
    assert resident() < kept - 32 * (1 << 20)
