"""First actions of a training process: it ends with its launcher, and it locks its GPUs.

Uses the standard library only, so that little time passes before they take effect.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """End this process when its launcher ends; otherwise torchrun's ranks would keep their GPUs.

    The kernel sends the signal when the parent's thread ends. So it must be set before anything
    slow, and the parent checked again afterwards: it may have ended in between.
    """
    if not sys.platform.startswith("linux") or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    if parent == 1 and b"torch" not in Path("/proc/1/cmdline").read_bytes():
        sys.exit("torchrun has already ended; this rank exits")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("torchrun has already ended; this rank exits")


def set_cuda_allocator() -> None:
    """Let CUDA's memory pool grow in place, unless the environment has settings of its own.

    Chunks of logits and several sequence lengths need blocks of many sizes, which fragments fixed
    segments. torch reads the variable when it first allocates.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    if not any(name in os.environ for name in names):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def hold_gpus() -> None:
    """Hold the lock of each GPU that this process may use, as long as it lives.

    These locks show whether a GPU is free, so a rank that outlived its launcher still counts. The
    launcher names the files; each rank opens them itself, since torchrun closes inherited files.
    Forked children hold the locks too.
    """
    for path in filter(None, os.environ.get("LEHR_GPU_LOCKS", "").split(os.pathsep)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{path} is locked by another process: the GPU was assigned to it meanwhile")
