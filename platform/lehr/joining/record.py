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
        defaults = {
            "--name": own_name(),
            "--runs": str(where / "runs"),
            "--data": str(where / "data"),
            "--base-port": DEFAULT_BASE,
        }
        words = ["lehr", "node", "join", self.server_url]
        for option, value in self.options().items():
            if value and value != defaults.get(option):
                words += [option, str(value)]
        return words

    def options(self) -> dict[str, str | int | None]:
        """Return the options of ``lehr node join`` with their values, also of those not given."""
        return {
            "--name": self.node,
            "--gpus": self.gpus,
            "--runs": self.runs_dir,
            "--data": self.data_dir,
            "--interface": self.interface,
            "--base-port": self.base_port or DEFAULT_BASE,
            "--ca": self.ca_file,
        }

    def trust_authority(self) -> None:
        """Have this process trust the server's own authority, if it has one."""
        if self.ca_file is not None:
            os.environ["SSL_CERT_FILE"] = self.ca_file


def changes(before: JoinRecord, now: JoinRecord) -> dict[str, str]:
    """Return what differs between two ways to join, in words, by option; URL for the server's."""
    news, olds = ({"URL": one.server_url, **one.options()} for one in (now, before))
    return {
        name: f"{name} {new or 'none'} instead of {olds[name] or 'none'}"
        for name, new in news.items()
        if new != olds[name]
    }


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
    procfs.write_json(str(folder(where) / "ray.json"), asdict(process), mode=0o600, durable=True)


def read_ray(where: Path) -> RayProcess | None:
    found = procfs.read_json(str(where / "join" / "ray.json"))
    try:
        return RayProcess(**found)
    except TypeError:
        return None
