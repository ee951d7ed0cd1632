"""Which GPUs are taken: each process of a training holds their locks. Standard library only."""

from __future__ import annotations

import fcntl
import os
import sys


def hold_gpus() -> None:
    """Hold the lock of each GPU that this process may use, for as long as it lives.

    Whether a GPU is free is asked of these locks, so a rank that outlived its launcher still
    counts. The launcher names the files; each rank opens them itself, since torchrun closes what
    it inherits. Children that are forked hold them, too.
    """
    for path in filter(None, os.environ.get("LEHR_GPU_LOCKS", "").split(os.pathsep)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{path} is held by somebody else: the GPU was given away meanwhile")
