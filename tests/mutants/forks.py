"""Run a function in a child process, within limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path


def in_fork(
    function: Callable[[], int], *, cpu_s: float | None, wall_s: float | None
) -> tuple[str, float]:
    """Run it in a child: ``survived`` for 0, ``timeout``, else ``killed``; and the CPU time."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setsid()
            end_with_parent()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if cpu_s is not None:
                limit = int(cpu_s) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
                _bound_memory()
            if not os.environ.get("MUTANTS_SHOW"):
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(1, 2)
            code = function()
        finally:
            os._exit(code)
    ended = select.poll()
    watch = os.pidfd_open(pid)
    ended.register(watch, select.POLLIN)
    in_time = ended.poll(None if wall_s is None else wall_s * 1000)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # What the tests left running, too.
    _, status, usage = os.wait4(pid, 0)
    os.close(watch)
    code = os.waitstatus_to_exitcode(status)
    seconds = round(usage.ru_utime + usage.ru_stime, 2)
    if not in_time or code in {-signal.SIGXCPU, -signal.SIGKILL}:
        return "timeout", seconds
    return ("killed" if code else "survived"), seconds


def end_with_parent() -> None:
    """Be killed when the process that started this one ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _bound_memory() -> None:
    """Two GiB more than there is now: an endless loop may fill a list."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + 2 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
