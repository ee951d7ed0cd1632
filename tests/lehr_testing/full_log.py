"""Stderr on a disk that is full."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def full_log() -> Iterator[None]:
    """Let each flushed line on stderr fail with ENOSPC.

    A context and no fixture: pytest puts its own stderr back before each phase of a test.
    """
    file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - its close fails too
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", file)
            yield
    finally:
        with contextlib.suppress(OSError):
            file.close()
