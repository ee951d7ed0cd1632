"""Start a training: torchrun, or the one rank itself. Standard library only.

A gang of one needs no launcher: its only process gets the environment that torchrun would set. That
saves each single-GPU trial a second interpreter with torch (seconds of start-up and hundreds of
megabytes, times eight on one machine), and the shim is its direct parent.
"""

import os
import socket
import sys
from typing import Any, NamedTuple

from lehr.base import procfs
from lehr.node import attempt_code, subprocesses
from lehr.node.attempt_dir import AttemptDir
from lehr.node.gpu_lock import VARIABLE


class Gang(NamedTuple):
    """One node's part of an attempt."""

    per_node: int  # Ranks on this node, one per GPU.
    nodes: int = 1
    node_rank: int = 0
    master_address: str = "127.0.0.1"  # Address of the first node, as the others reach it.
    master_port: int = 0  # The same on all nodes; 0 lets a single node choose a free port.

    @property
    def alone(self) -> bool:
        return self.nodes == 1 and self.per_node == 1

    @property
    def ranks(self) -> range:
        first = self.node_rank * self.per_node
        return range(first, first + self.per_node)


def command(
    trainer: str, attempt_dir: str, gang: Gang, *, python: str = sys.executable
) -> list[str]:
    """Return the argv that trains ``attempt_dir``.

    ``trainer`` is a module's name, or the path of a script ending in ``.py``.
    """
    # -P: a file in the script's or the working folder must never shadow a module.
    target = [trainer] if trainer.endswith(".py") else ["-m", trainer]
    if gang.alone:
        return [python, "-P", *target, attempt_dir]
    launcher = [
        python,
        "-P",
        "-m",
        "torch.distributed.run",
        # The dispatcher retries, with a new attempt from a checkpoint in its own directory.
        "--max-restarts=0",
        f"--nproc-per-node={gang.per_node}",
    ]
    if gang.nodes == 1:
        # A rendezvous on a port that torchrun binds itself, so that nobody can take it in between.
        # The address: torchrun would use the host's name, which may not resolve.
        launcher += ["--standalone", "--local-addr=127.0.0.1"]
    else:
        launcher += [
            f"--nnodes={gang.nodes}",
            f"--node-rank={gang.node_rank}",
            f"--master-addr={gang.master_address}",
            f"--master-port={gang.master_port}",
        ]
    return [*launcher, *target, attempt_dir]


def environment(gang: Gang, *, gpus: list[int], threads: int) -> dict[str, str]:
    """Return the environment variables of the training process, with or without torchrun."""
    values = {
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in gpus),
        # nvidia-smi's order, in which the GPUs were counted.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if gang.alone:
        values |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
    return values


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


TERM_GRACE_S = 600.0
"""Time between a SIGTERM from outside Lehr and the kill: long enough to save 15 GB."""
SUPERVISOR_S = 30.0
"""After a program's grace period: time for its supervisor to kill it and keep its checkpoints."""


def term_grace_s(launch: dict[str, Any]) -> float:
    grace_s = launch.get("stop_grace_s")
    return TERM_GRACE_S if grace_s is None else float(grace_s) + SUPERVISOR_S


def start(
    launch: dict[str, Any],
    entry: AttemptDir,
    gang: Gang,
    *,
    variables: dict[str, str],
    python: str | None,
    output: str,
    keep: tuple[int, ...],
) -> subprocesses.Child:
    """Start the ranks of ``gang`` in the attempt's directory.

    ``variables`` are of the spec, with the values of its secrets; ``python`` is the interpreter of
    the environment that the spec names, else that of the node. The file ``output`` gets what the
    launcher writes; the descriptors ``keep`` stay open in it.

    Raises:
        OSError: the output cannot be written, or the command cannot be run; ``filename`` shows
            which.
    """
    # A program's supervisor is of the platform: only the program trains in the environment.
    own = python if not launch.get("program") else None
    attempt_dir = str(launch["attempt_dir"])
    argv = command(launch["trainer"], attempt_dir, gang, python=own or sys.executable)
    variables_of_training = {
        **os.environ,
        **variables,
        **attempt_code.variables(launch, entry, python),
        **environment(gang, gpus=launch["gpus"], threads=launch["threads"]),
        "LEHR_ATTEMPT": entry.attempt_id,
        "LEHR_SYSTEM": entry.of_node("system.json"),
        procfs.MARK: launch["nonce"],
        VARIABLE: os.pathsep.join(launch["gpu_locks"]),
    }
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        return subprocesses.start(
            argv, environment=variables_of_training, folder=attempt_dir, output=log, keep=keep
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror, argv[0]) from error
    finally:
        os.close(log)
