"""What a joined machine remembers: ``<home>/join/node.json`` and the Ray node that it runs."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from lehr.base import procfs
from lehr.cluster.ray_process import RayProcess


@dataclass(frozen=True)
class JoinRecord:
    """How this machine joined, so that it can join again by itself."""

    server_url: str
    node: str
    node_token: str = field(repr=False)
    gpus: int
    logical: bool
    """Its GPUs are logical ones."""
    runs_dir: str | None = None
    """Its own folder of runs; None: the server's path."""
    data_dir: str | None = None
    interface: str | None = None
    """The network interface for Ray, NCCL and gloo; None: the one on the route to the server."""
    base_port: int = 0
    ca_file: str | None = None
    """Certificates to trust besides the system's, for a server with its own authority."""
    leaves: bool = False
    """When its keeper ends, the node leaves: a job of Slurm ends, with all its processes."""

    def trust_authority(self) -> None:
        """Have this process trust the server's own authority, if it has one."""
        if self.ca_file is not None:
            os.environ["SSL_CERT_FILE"] = self.ca_file


_IN_USE = {
    "--name": "node",
    "--gpus": "gpus",
    "--runs": "runs_dir",
    "--data": "data_dir",
    "--interface": "interface",
    "--base-port": "base_port",
}
"""The options that trainings use, with their fields. How the server is reached may change."""


def changes(before: JoinRecord, now: JoinRecord) -> list[str]:
    """Return what differs between two ways to join, in words."""
    return [
        f"{option} {getattr(now, name) or 'none'} instead of {getattr(before, name) or 'none'}"
        for option, name in _IN_USE.items()
        if getattr(now, name) != getattr(before, name)
    ]


def own_name() -> str:
    """Return the name of this machine as a node, unless another one is given."""
    return socket.gethostname().partition(".")[0]


def folder(where: Path) -> Path:
    path = where / "join"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write(where: Path, record: JoinRecord) -> None:
    path = str(folder(where) / "node.json")
    procfs.write_json(path, asdict(record), mode=0o600, durable=True)


def read(where: Path) -> JoinRecord | None:
    """Return how the machine joined; None if it has not, or if it has left."""
    found = procfs.read_json(str(where / "join" / "node.json"))
    if not isinstance(found, dict):
        return None
    known = {one.name for one in fields(JoinRecord)}
    try:
        return JoinRecord(**{name: value for name, value in found.items() if name in known})
    except TypeError:
        return None


def forget_how(where: Path) -> None:
    """Forget how the machine joined, and nothing of the Ray node that may still run."""
    (where / "join" / "node.json").unlink(missing_ok=True)


def forget(where: Path) -> None:
    forget_how(where)
    for name in ("ray.json", "ray-token"):
        (where / "join" / name).unlink(missing_ok=True)


def write_ray(where: Path, process: RayProcess) -> None:
    process.write(folder(where) / "ray.json")


def read_ray(where: Path) -> RayProcess | None:
    return RayProcess.read(where / "join" / "ray.json")
