"""Build the command of a training process. Standard library only.

A gang of one needs no launcher: its only process gets the environment that torchrun would set. That
saves each single-GPU trial a second interpreter with torch (seconds of start-up and hundreds of
megabytes, times eight on one machine), and the shim is its direct parent.
"""

import socket
import sys
from typing import NamedTuple


class Gang(NamedTuple):
    """One node's part of an attempt."""

    per_node: int
    """Ranks on this node, one per GPU."""
    nodes: int = 1
    node_rank: int = 0
    master_address: str = "127.0.0.1"
    """Address of the first node, as the others reach it."""
    master_port: int = 0
    """The same on all nodes; 0 lets a single node choose a free port."""

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
