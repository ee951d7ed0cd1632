"""What a joined machine remembers: ``<home>/join/node.json`` and the Ray node that it runs."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from lehr.cluster.ray_ports import DEFAULT_BASE
from lehr.cluster.ray_process import RayProcess
from lehr.node import procfs


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

    def command(self, where: Path) -> list[str]:
        """Return the command that joins again in the same way, apart from its token."""
        words = ["lehr", "node", "join", self.server_url]
        for option, value, default in (
            ("--name", self.node, own_name()),
            ("--gpus", self.gpus, None),
            ("--runs", self.runs_dir, str(where / "runs")),
            ("--data", self.data_dir, str(where / "data")),
            ("--interface", self.interface, None),
            ("--base-port", self.base_port, DEFAULT_BASE),
            ("--ca", self.ca_file, None),
        ):
            if value and value != default:
                words += [option, str(value)]
        return words

    def trust_authority(self) -> None:
        """Have this process trust the server's own authority, if it has one."""
        if self.ca_file is not None:
            os.environ["SSL_CERT_FILE"] = self.ca_file


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


def forget(where: Path) -> None:
    for name in ("node.json", "ray.json", "ray-token"):
        (where / "join" / name).unlink(missing_ok=True)


def write_ray(where: Path, process: RayProcess) -> None:
    procfs.write_json(str(folder(where) / "ray.json"), asdict(process), mode=0o600, durable=True)


def read_ray(where: Path) -> RayProcess | None:
    found = procfs.read_json(str(where / "join" / "ray.json"))
    try:
        return RayProcess(**found)
    except TypeError:
        return None
