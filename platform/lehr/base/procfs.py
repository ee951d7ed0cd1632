"""Operating-system functions for the shim and its child processes. Standard library only.

A process is identified by boot id, pid and start time together: pids are reused, and after a reboot
so are start times.
"""

import contextlib
import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable
from typing import IO, Any

MARK = "LEHR_ATTEMPT_NONCE"
"""Environment variable of every process of an attempt. It finds ranks again, since torchrun
gives each its own session.
"""


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Return clock ticks from boot to the process's start; None when it is gone (or a zombie)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def is_same(pid: int, started: int, boot: str) -> bool:
    """Return whether the recorded process still runs."""
    return boot == boot_id() and start_time(pid) == started


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(variable: str, value: str) -> list[int]:
    """Return living processes of this user with ``variable=value`` in their environment."""
    needle = f"{variable}={value}".encode()
    found = []
    for pid in pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if needle in environment.split(b"\0") and start_time(pid) is not None:
            found.append(pid)
    return found


def parents() -> dict[int, int]:
    """Return the parent of each living process of the machine."""
    found = {}
    for pid in pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[pid] = int(fields[1])
    return found


def children(parent: int) -> list[int]:
    return [pid for pid, its_parent in parents().items() if its_parent == parent]


def descendants(roots: Iterable[int]) -> dict[int, int]:
    """Return these processes and all below them that live, each with its start time."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        below.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        started = start_time(pid)
        if pid not in found and started is not None:
            found[pid] = started
            waiting += below.get(pid, [])
    return found


def send(pid: int, number: int) -> bool:
    """Send a signal to a process; return False when it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(pid: int, within_s: float) -> bool:
    """Send SIGTERM, then SIGKILL after ``within_s``. Return whether it was killed.

    Raises:
        PermissionError: the process belongs to another user.
    """
    started = start_time(pid)
    if started is None:
        return False
    for number, limit_s in ((signal.SIGTERM, within_s), (signal.SIGKILL, 10.0)):
        send(pid, number)
        deadline = time.monotonic() + limit_s
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(0.05)
        if start_time(pid) != started:
            break
    return number == signal.SIGKILL


def parent_death(parent: int) -> Callable[[], None]:
    """Return a function for a child of ``parent``: the kernel then kills it when the parent ends.

    Looked up before the fork, since little may be done between fork and exec. The signal fires when
    the parent's *thread* ends.
    """
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # The parent ended before the kernel was asked.
            os._exit(1)

    return ask


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, in place of the system's init.

    A process that has cleared its environment has no mark, and is found as a child.
    """
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def write_atomically(path: str, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace the file atomically: a reader sees the old content or the new.

    ``durable``: the new content is on the disk when it returns, as with
    ``lehr_trainer.files.write_atomically``.
    """
    draft = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        os.unlink(draft)
        raise
    os.close(descriptor)
    os.replace(draft, path)
    if durable:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: str, value: Any, *, mode: int = 0o644, durable: bool = False) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    write_atomically(path, data + b"\n", mode=mode, durable=durable)


def open_regular(path: str, *, follow: bool = False) -> IO[bytes]:
    """Do what `lehr_trainer.files.open_regular` does, which a shim cannot import.

    Raises:
        OSError: the file cannot be opened, or is not a regular one.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_json(path: str) -> Any:
    """Return the file's content; None if it is missing or incomplete, or nested too deeply."""
    try:
        with open_regular(path) as file:
            return json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None


def log(line: str) -> None:
    """Write a line to stderr, or nothing if the disk of the log refuses it.

    A log on a full disk must not end the work that it is about.
    """
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
