"""A process that imports modules once, and forks: ``python -P fork_server.py FD MODULE...``.

FD is a socket to the process that asks, see forking.py. A fork becomes what was asked for at the
end of this file, so that its interpreter ends as that of a process of its own. Several ranks are
forks of a launcher, which is a fork itself and stands for torchrun: it holds the store in which
they meet, and ends all when one fails.

No MODULE may start a thread: a fork has only the thread that forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

LARGEST_REQUEST = 1 << 20
_PR_SET_PDEATHSIG = 1
_RANKS_END_WITHIN_S = 30
_LIBC = ctypes.CDLL(None, use_errno=True)


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork for each request.

    Returns None when nobody can ask any more; in a fork, the request.
    """
    client = os.getppid()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    poll = select.poll()
    poll.register(asked, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while os.getppid() == client:
        ready = {descriptor for descriptor, _ in poll.poll(1000)}
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(statuses)
        if asked.fileno() not in ready:
            continue
        request, descriptors = _receive(asked)
        if request is None:
            break
        status, *outputs = descriptors
        server = os.getpid()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            asked.close()
            for descriptor in (woken, wake, status, *statuses.values()):
                os.close(descriptor)
            _settle_in(request, outputs, server)
            return request
        statuses[pid] = status
        for descriptor in outputs:
            os.close(descriptor)
        asked.sendall(pid.to_bytes(4, "big"))
    return None


def _receive(asked: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request and its descriptors; None when the other end is closed."""
    content, descriptors, _, _ = socket.recv_fds(asked, LARGEST_REQUEST, 3)
    return (json.loads(content) if content else None), descriptors


def _report_ended(statuses: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with contextlib.suppress(BrokenPipeError):
                os.write(statuses[pid], status.to_bytes(4, "big"))
            os.close(statuses.pop(pid))


def _settle_in(request: dict[str, Any], outputs: list[int], server: int) -> None:
    """Set up the fork like a new process: session, signals, environment, folder, output."""
    os.setsid()
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, descriptor in zip((1, 2), outputs, strict=True):
        os.dup2(descriptor, number)
    for descriptor in outputs:
        os.close(descriptor)
    sys.orig_argv = [sys.executable, "-m", request["module"] or "", *request["arguments"]]


def _end_with(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


# --- several ranks ---------------------------------------------------------------------------


def launch(ranks: int) -> None:
    """Fork ``ranks`` processes with the environment that torchrun gives. Returns in the ranks."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    pids: list[int] = []
    for rank in range(ranks):
        launcher, pid = os.getpid(), os.fork()
        if not pid:
            listener.close()
            _end_with(launcher)
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID="none",
                TORCHELASTIC_RESTART_COUNT="0",
                TORCHELASTIC_USE_AGENT_STORE="True",
            )
            return
        pids.append(pid)
    os._exit(_watch(pids, listener))


def _watch(pids: list[int], listener: socket.socket) -> int:
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    code, deadline = 0, 0.0
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG if deadline else 0)
        if pid:
            pids.remove(pid)
        if pid and status and not deadline:
            code, deadline = 1, time.monotonic() + _RANKS_END_WITHIN_S
            for other in pids:
                os.kill(other, signal.SIGTERM)
        elif not pid:
            if time.monotonic() > deadline:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
            time.sleep(0.01)
    del store
    return code


def preload(modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, f"a fork would lack {len(threads) - 1} threads"
    gc.collect()
    # A collection in a fork need not write to, and so copy, what is the same in all.
    gc.freeze()


if __name__ == "__main__":
    preload(sys.argv[2:])
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    if job is not None:
        if job["ranks"] > 1:
            launch(job["ranks"])
        sys.argv = [job["module"] or "-c", *job["arguments"]]
        exec(job["code"], {"__name__": "sitecustomize"})
        if job["module"]:
            runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
