"""GPU locks: a lock, not a pid, decides whether a GPU is free. Standard library only.

There are two files per GPU, on the node itself:

- ``gpu-N.owner`` is held exclusively by the one shim that owns the GPU.

- ``gpu-N.lock`` is held shared by that shim and by every rank and loader worker. Each opens it
itself, because torchrun closes inherited descriptors. Once it can be locked exclusively, no process
is left and the GPU is free, whatever happened to the shim.

The owner's lock closes the gap while an exclusive flock becomes a shared one. The kernel releases
locks when their holders end.
"""

import fcntl
import os

VARIABLE = "LEHR_GPU_LOCKS"
"""The variable with the lock files that an attempt's processes must hold (separated by
``os.pathsep``).
"""


def lock_path(folder: str, gpu: str) -> str:
    return os.path.join(folder, f"gpu-{gpu}.lock")


class GpuLock:
    def __init__(self, path: str) -> None:
        self.path = path
        self._owner = -1
        self.shared = -1  # A process that inherits this descriptor holds the GPU, too.

    def acquire(self) -> bool:
        """Take the GPU if it is free; never wait."""
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
        self._owner, self.shared = owner, shared
        return True

    def release(self) -> None:
        for descriptor in (self.shared, self._owner):
            if descriptor >= 0:
                os.close(descriptor)
        self._owner = self.shared = -1


def acquire_all(paths: list[str]) -> list[GpuLock] | None:
    """Take all of the GPUs, or none of them."""
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
    lock = GpuLock(path)
    free = lock.acquire()
    lock.release()
    return free


def _open(path: str) -> int:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The files may belong to other users. Reading is enough to lock them, a planted link is never
    # followed, and in a shared folder the kernel may forbid opening existing files with O_CREAT.
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
