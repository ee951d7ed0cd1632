"""A small disk that a test can fill up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / ".filler"

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with self.filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def free(self) -> None:
        self.filler.unlink()


@contextlib.contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """A tmpfs at ``path``. Skips the test where it cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("a disk of a test's own needs root")
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "lehr-test", str(path)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
