"""A process that copies a checkpoint, so that the supervisor never waits for a disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lehr.base import procfs
from lehr.node import subprocesses


class Copier:
    """One copy in a process of its own, which ends with this one.

    ``copy`` does it, and returns what ``answer`` returns later. The process is a fork, so it has
    the attempt's mark. It keeps SIGTERM blocked: a notice is for the program.
    """

    def __init__(self, copy: Callable[[], dict[str, Any]]) -> None:
        die_with_parent = procfs.parent_death(os.getpid())
        self._answer, answer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(self._answer)
            os.close(answer)
            raise
        if pid == 0:
            try:
                die_with_parent()
                # A copy that hangs in the kernel must not hold the locks of the GPUs.
                for path in list(Path("/proc/self/fd").iterdir()):
                    if int(path.name) not in {0, 1, 2, answer}:
                        with contextlib.suppress(OSError):
                            os.close(int(path.name))
                os.write(answer, json.dumps(copy()).encode())
            except BaseException:  # noqa: BLE001 - no frame of the supervisor may run here
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(answer)
        self._child = subprocesses.Child(pid)

    def answer(self) -> dict[str, Any] | None:
        """Return what came of it; None while it runs."""
        if self._child.poll() is None:
            return None
        with os.fdopen(self._answer, "rb") as file:
            content = file.read()
        if not content:
            return {"failed": f"its process ended with code {self._child.returncode}"}
        answer: dict[str, Any] = json.loads(content)
        return answer

    def kill(self) -> None:
        """End it; nobody waits for it, since a write to a slow disk cannot be interrupted."""
        procfs.send(self._child.pid, signal.SIGKILL)
        os.close(self._answer)
