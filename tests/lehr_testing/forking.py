"""Processes forked from one that has imported torch, to save the seconds of the import."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lehr_testing.paths import TESTING

_SCRIPT = TESTING / "fork_server.py"
PRELOADED = (
    "lehr_trainer.assemble",
    "lehr_trainer.data.files",
    "lehr_trainer.runtime.failures",
    "lehr_trainer.planning.counts",
    "lehr_trainer.models.module_map",
    "lehr_trainer.runtime.launch",
    # Imported by the first step of any optimizer.
    "torch._dynamo",
)
_READ_AT_IMPORT = ("OMP_", "MKL_", "TORCH_", "PYTHON")


class Forked:
    """A process that the server forked, with the interface of a text ``subprocess.Popen``."""

    def __init__(self, args: list[str], pid: int, status: int, outputs: list[int]) -> None:
        self.args, self.pid = args, pid
        self.returncode: int | None = None
        self._status, self._outputs = status, outputs

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            status = os.read(self._status, 4)
            assert status, f"the fork server died, and with it {self.args}"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return its stdout and stderr."""
        end = None if timeout is None else time.monotonic() + timeout
        written: dict[int, bytes] = dict.fromkeys(self._outputs, b"")
        unread = set(self._outputs)
        while unread:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = select.select(list(unread), [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            for descriptor in ready:
                part = os.read(descriptor, 1 << 16)
                written[descriptor] += part
                if not part:
                    unread.remove(descriptor)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        out, *rest = (written[descriptor].decode() for descriptor in self._outputs)
        return out, "".join(rest)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end_session(self) -> None:
        """Kill whatever is left of it and of the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(30)

    def close(self) -> None:
        for descriptor in (self._status, *self._outputs):
            os.close(descriptor)


class Server:
    """The process that forks. It ends when this process does, however that ends."""

    def __init__(self, preloaded: Sequence[str] = PRELOADED) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.owner, self._turn = os.getpid(), threading.Lock()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno()), *preloaded],
                env=self.environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(
        self,
        module: str | None,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str],
        ranks: int = 1,
        code: str = "",
        stderr_apart: bool = False,
    ) -> Forked:
        """Start ``python -m module *arguments`` as forks; several ranks, as torchrun does.

        ``environment`` is all of it; what is read at imports must be as in this process. ``code`` is
        executed in each process before the module, if any, as ``sitecustomize`` would be.
        """
        self._refuse_late(environment)
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "ranks": ranks,
            "code": code,
        }
        pipes = [os.pipe() for _ in range(3 if stderr_apart else 2)]
        status, *outputs = (written for _, written in pipes)
        sent = [status, outputs[0], outputs[-1]]
        try:
            with self._turn:
                socket.send_fds(self._ours, [json.dumps(request).encode()], sent)
                answer = self._ours.recv(4)
        finally:
            for _, written in pipes:
                os.close(written)
        assert answer, "the fork server died; see its stderr"
        read = [ours for ours, _ in pipes]
        args = [module or "-", *arguments]
        return Forked(args, int.from_bytes(answer, "big"), read[0], read[1:])

    def _refuse_late(self, environment: Mapping[str, str]) -> None:
        for name in {*environment, *self.environment}:
            asked, had = environment.get(name), self.environment.get(name)
            if name.startswith(_READ_AT_IMPORT) and asked != had:
                raise ValueError(f"{name} is read at imports, which a fork has behind it: {asked}")

    def close(self) -> None:
        if self.owner == os.getpid():
            self._ours.close()
            self.process.wait(30)


_server: Server | None = None


def fork(module: str | None, arguments: Sequence[str] = (), **options: Any) -> Forked:
    """Start a process as a fork of this session's server; see ``Server.fork``."""
    global _server  # noqa: PLW0603 - one a session
    if _server is None or _server.owner != os.getpid():
        _server = Server()
        atexit.register(_server.close)
    return _server.fork(module, arguments, **options)


def run(
    module: str, *arguments: object, environment: Mapping[str, str], timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of ``python -m module *arguments``, as a fork."""
    process = fork(module, [*map(str, arguments)], environment=environment, stderr_apart=True)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.end_session()
        process.close()
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)
