"""The shim's child processes. Standard library only; for a process with one thread.

Importing ``subprocess`` would cost a third of a shim's start-up time.
"""

import os
import signal
import time
from collections.abc import Callable

from lehr.base import procfs
from lehr.base.procfs import parent_death
from lehr.node.attempt_dir import AttemptDir

_started: set[int] = set()  # Children whose exit codes are not read yet.


class Child:
    """A process that dies with this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Negative for a signal, as in ``subprocess``; None while it runs."""

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                _started.discard(pid)
        return self.returncode


def start(
    command: list[str],
    *,
    environment: dict[str, str],
    folder: str,
    output: int | None = None,
    keep: tuple[int, ...] = (),
) -> Child:
    """Run ``command``, an argv with an absolute program, with an empty input.

    ``environment`` is complete. ``output`` gets stdout and stderr; None keeps those of this
    process. ``keep`` are descriptors to inherit.

    Raises:
        OSError: it could not be run.
    """
    die_with_parent = parent_death(os.getpid())
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    failed, fail = os.pipe()  # Closed by a successful exec.
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            os.dup2(nothing, 0)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            for descriptor in keep:
                os.set_inheritable(descriptor, True)
            os.chdir(folder)
            # Python ignores these two, and children would inherit that.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.execve(command[0], command, environment)  # noqa: S606 - an argv list
        except OSError as error:
            os.write(fail, str(error.errno or 0).encode())
        finally:
            os._exit(127)
    os.close(nothing)
    os.close(fail)
    why = os.read(failed, 16)
    os.close(failed)
    if why:
        os.waitpid(pid, 0)
        raise OSError(int(why), os.strerror(int(why)), command[0])
    _started.add(pid)
    return Child(pid)


def reap_orphans() -> None:
    """Free the entries of ended processes that this one has adopted (`procfs.adopt_orphans`)."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in _started:
            return  # Whoever started it reads its exit code.
        os.waitpid(ended.si_pid, 0)


def orphans() -> list[int]:
    """Return living processes that this one has adopted."""
    return [pid for pid in procfs.children(os.getpid()) if pid not in _started]


def into_background(entry: AttemptDir) -> None:
    """Continue in a background process with its own session; the original one ends with success.

    The original process ends only after the new one has registered, so a reported start did happen.
    """
    registered, report = os.pipe()
    if os.fork():
        os.close(report)
        ready = os.read(registered, 1)
        os._exit(0 if ready else 1)
    os.close(registered)
    os.setsid()
    if entry.hold() is None:  # Kept open, and so locked, until this process ends.
        os._exit(0)  # Another shim holds it: the attempt is running.
    pid = os.getpid()
    procfs.write_json(
        entry.file("shim.json"),
        {"pid": pid, "start_time": procfs.start_time(pid), "boot_id": procfs.boot_id()},
    )
    log = os.open(
        entry.file("shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.write(report, b"+")
    os.close(report)
    procfs.adopt_orphans()


_KILL_LIMIT_S = 60.0


def kill_marked(nonce: str, spared: set[int], pause: Callable[[], None]) -> list[int]:
    """Kill all processes of an attempt except the spared ones; return those that survive.

    A process of an attempt has the attempt's mark in its environment. One that has cleared its
    environment is found as an orphan, since the shim adopts those. ``pause`` waits a short time.
    """
    deadline = time.monotonic() + _KILL_LIMIT_S
    while True:
        left = {*procfs.marked(procfs.MARK, nonce), *orphans()} - spared
        if not left or time.monotonic() > deadline:
            reap_orphans()
            return sorted(left)
        for pid in left:
            procfs.send(pid, signal.SIGKILL)
        pause()
