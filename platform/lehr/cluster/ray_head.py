"""An embedded Ray head: a daemon that outlives the server, and that the next server finds again.

Ray runs with token authentication and without dashboard, client server and usage reports. Its GCS
and raylet listen on every interface, whatever the options, so the token protects them. It is stored
in the home, readable only by its owner.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lehr.base import home as homes
from lehr.cluster import ray_ports, ray_process
from lehr.cluster.ray_process import RayProcess
from lehr.errors import Conflict, RayStarting
from lehr.node import gpu_inventory, runs_folder
from lehr_trainer.files import ensure_secret


def token_file(home: Path) -> Path:
    return _folder(home) / "token"


def ray_token(home: Path) -> str:
    """Return the Ray token; "" if it is lost."""
    path = token_file(home)
    return path.read_text().strip() if path.exists() else ""


def driver_environment(home: Path) -> dict[str, str]:
    """Return the environment variables for a process that connects to the home's embedded Ray."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file(home))}


def recorded(home: Path) -> RayProcess | None:
    return RayProcess.read(_folder(home) / "head.json")


def ensure(home: Path, gpus: int, *, node: str, public_host: str | None = None) -> RayProcess:
    """Return the running head of this home, or start one that offers so many GPUs.

    A head with another number of GPUs, of another version of Python or Ray, with a token that is
    lost, or one that is only half alive, is stopped first. Trainings are not its children and
    continue. By ``public_host`` other machines reach this one: then its ports are fixed, so that a
    firewall can open them, and nodes find it again after a restart.

    Raises:
        InternalError: Ray did not start; the message has its last lines.
    """
    with _starting(home):
        new = secrets.token_hex(32).encode()
        lost = ensure_secret(token_file(home), new) == new
        head = recorded(home)
        if head is not None:
            same = (head.gpus, head.versions, lost) == (gpus, ray_process.versions(), False)
            if same and bool(head.base_port) == bool(public_host) and head.alive():
                return head
            ray_process.end(head)
        return _start(home, gpus, node=node, public_host=public_host)


def stop(home: Path) -> list[int]:
    with _starting(home):
        head = recorded(home)
        if head is None:
            return []
        ended = ray_process.end(head)
        (_folder(home) / "head.json").unlink(missing_ok=True)
        shutil.rmtree(homes.ray_dir(home), ignore_errors=True)
        return ended


def _start(home: Path, gpus: int, *, node: str, public_host: str | None) -> RayProcess:
    temporary = homes.ray_dir(home)
    ray_process.prepare_folder(temporary)
    node_ip = ray_ports.own_address(public_host)
    before = recorded(home)
    ports = ray_ports.choose(before.base_port if before else 0) if public_host else None
    port = ports.head if ports else ray_ports.free_port()
    command = ray_process.command(
        *("--head", "--port", str(port), "--include-dashboard", "false", "--no-monitor"),
        node_ip=node_ip,
        gpus=gpus,
        node=node,
        temporary=temporary,
        ports=ports.options() if ports else (),
    )
    # The server's folders, also after it was restarted with others, not those of this moment.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {runs_folder.RUNS, runs_folder.DATA}
    }
    environment = ray_process.environment(
        inherited, mark=ray_process.new_mark(), node_folder=homes.node_dir(home)
    )
    if public_host:
        environment |= ray_ports.network_environment(None, node_ip, environment)
    logical = {} if gpu_inventory.real_gpus() else {gpu_inventory.LOGICAL_VARIABLE: "1"}
    return ray_process.start(
        command,
        environment=environment | driver_environment(home) | logical,
        address=f"{node_ip}:{port}",
        gpus=gpus,
        base_port=ports.head if ports else 0,
        temporary=temporary,
        versions=ray_process.versions(),
        log_path=homes.logs_dir(home) / "ray.log",
        record=lambda head: head.write(_folder(home) / "head.json"),
    )


def _folder(home: Path) -> Path:
    folder = home / "ray"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def _starting(home: Path) -> Iterator[None]:
    """Hold a lock: one process at a time starts or stops the head."""
    with (_folder(home) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class RayAccess:
    address: str  # Of the head: host and port.
    token: str | None = field(repr=False)
    session: str = ""  # Differs between two heads at the same address; empty if unknown.


def ray_access(home: Path, *, ray_address: str | None, server_url: str) -> RayAccess:
    """Return the address and token of Ray for a machine that joins.

    Raises:
        Conflict: other machines cannot reach Ray.
        RayStarting: Ray is not up.
    """
    public = urlsplit(server_url).hostname or ""
    if homes.is_loopback(public):
        raise Conflict(
            f"other machines cannot join: this server's URL is {server_url}, which only its own "
            "machine can reach.",
            hint="Start it for the network. On the server's machine: lehr down, then lehr up "
            "--host 0.0.0.0 --public-url http://ADDRESS:5347 (docs/cluster.md).",
        )
    if ray_address is not None:
        return RayAccess(_reachable(ray_address, public), _outer_token())
    head = recorded(home)
    token = ray_token(home)
    if head is None or not head.running() or not token:
        raise RayStarting("Ray is still starting.", hint="Try again in a few seconds.")
    return RayAccess(
        _reachable(head.address, public),
        token,
        session=f"{head.boot_id}-{head.pid}-{head.start_time}",
    )


def _reachable(address: str, public_host: str) -> str:
    """Return the address as other machines must write it: a head on this machine has its name."""
    host, _, port = address.rpartition(":")
    return f"{public_host}:{port}" if homes.is_loopback(host) else address


def _outer_token() -> str | None:
    """Return the token of a Ray that this server did not start, as Ray itself finds it."""
    if os.environ.get("RAY_AUTH_MODE", "disabled").lower() != "token":
        return None
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Conflict(
            f"Ray's token cannot be read: {path}: {error.strerror}.",
            hint="Start the server with RAY_AUTH_TOKEN_PATH set to the cluster's token file.",
        ) from None
