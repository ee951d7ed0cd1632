"""Whether a GPU is free is asked of a lock, not of process ids. Standard library only.

Two files a GPU, on the node itself:

- ``gpu-N.owner`` is held exclusively by the one shim that has the GPU.
- ``gpu-N.lock`` is held shared by that shim and by every rank and loader worker, each of which
  opens it by itself (torchrun closes inherited descriptors). Only when nobody is left can it be
  had exclusively: then the GPU is free, whatever became of the shim.

The owner's lock closes the gap that turning an exclusive flock into a shared one leaves open.
Locks end with their holders, however those end.
"""

import fcntl
import os

VARIABLE = "LEHR_GPU_LOCKS"
"""Where an attempt's processes find the lock files that they must hold (``os.pathsep`` between)."""


def lock_path(folder: str, gpu: str) -> str:
    return os.path.join(folder, f"gpu-{gpu}.lock")


class GpuLock:
    """One GPU's lock, as its shim holds it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._owner = -1
        self._shared = -1

    def acquire(self) -> bool:
        """Takes the GPU if nobody holds it; never waits."""
        owner = _open(self.path.removesuffix(".lock") + ".owner")
        if not _try(owner, fcntl.LOCK_EX):
            os.close(owner)
            return False
        shared = _open(self.path)
        if not _try(shared, fcntl.LOCK_EX):
            os.close(shared)
            os.close(owner)
            return False
        fcntl.flock(shared, fcntl.LOCK_SH)
        self._owner, self._shared = owner, shared
        return True

    @property
    def shared(self) -> int:
        """The shared lock's descriptor: a process that inherits it holds the GPU, too."""
        return self._shared

    def release(self) -> None:
        for descriptor in (self._shared, self._owner):
            if descriptor >= 0:
                os.close(descriptor)
        self._owner = self._shared = -1


def acquire_all(paths: list[str]) -> list[GpuLock] | None:
    """All of the GPUs, or none of them."""
    held: list[GpuLock] = []
    for path in sorted(paths):
        lock = GpuLock(path)
        if not lock.acquire():
            for other in held:
                other.release()
            return None
        held.append(lock)
    return held


def is_free(path: str) -> bool:
    """Whether neither a shim nor anything that it started holds the GPU."""
    lock = GpuLock(path)
    free = lock.acquire()
    lock.release()
    return free


def _open(path: str) -> int:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # A real GPU's files are other users', too: reading is enough for a lock, a planted link is
    # never followed, and the kernel may forbid to "create" what is there in a shared folder.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
