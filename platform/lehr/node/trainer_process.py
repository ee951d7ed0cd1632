"""Start the training of an attempt: torchrun, or the one rank itself.

Standard library only.
"""

import os
import sys
from typing import Any

from lehr.base import procfs
from lehr.node import attempt_code, subprocesses, torchrun
from lehr.node.attempt_dir import AttemptDir
from lehr.node.gpu_lock import VARIABLE

TERM_GRACE_S = 600.0
"""Time between a SIGTERM from outside Lehr and the kill: long enough to save 15 GB."""
SUPERVISOR_S = 30.0
"""After a program's grace period: time for its supervisor to kill it and keep its checkpoints."""


def term_grace_s(launch: dict[str, Any]) -> float:
    """Return the time between a SIGTERM from outside Lehr and the kill."""
    grace_s = launch.get("stop_grace_s")
    return TERM_GRACE_S if grace_s is None else float(grace_s) + SUPERVISOR_S


def start(
    launch: dict[str, Any],
    entry: AttemptDir,
    gang: torchrun.Gang,
    *,
    variables: dict[str, str],
    python: str | None,
    output: str,
    keep: tuple[int, ...],
) -> subprocesses.Child:
    """Start it in the attempt's directory.

    Args:
        launch: the launch spec.
        entry: the attempt's folder on this node.
        gang: the ranks, and where they meet.
        variables: of the spec, with the values of its secrets.
        python: interpreter of the environment that the spec names; None: that of the node.
        output: file that gets what the launcher writes.
        keep: descriptors that stay open in it.

    Raises:
        OSError: the output cannot be written, or the command cannot be run; ``filename`` shows
            which.
    """
    # A program's supervisor is of the platform: only the program trains in the environment.
    own = python if not launch.get("program") else None
    attempt_dir = str(launch["attempt_dir"])
    command = torchrun.command(launch["trainer"], attempt_dir, gang, python=own or sys.executable)
    environment = {
        **os.environ,
        **variables,
        **attempt_code.variables(launch, entry, python),
        **torchrun.environment(gang, gpus=launch["gpus"], threads=launch["threads"]),
        "LEHR_ATTEMPT": entry.attempt_id,
        "LEHR_SYSTEM": entry.of_node("system.json"),
        procfs.MARK: launch["nonce"],
        VARIABLE: os.pathsep.join(launch["gpu_locks"]),
    }
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        return subprocesses.start(
            command, environment=environment, folder=attempt_dir, output=log, keep=keep
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror, command[0]) from error
    finally:
        os.close(log)
