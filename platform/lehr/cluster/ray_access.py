"""How another machine reaches this server's Ray: its address and its token."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lehr import home as homes
from lehr.cluster import ray_head
from lehr.errors import Conflict, RayStarting


@dataclass(frozen=True)
class RayAccess:
    address: str
    """Of the head: host and port."""
    token: str | None = field(repr=False)
    session: str = ""
    """Differs between two heads at the same address; empty if unknown."""


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
    head = ray_head.recorded(home)
    token = ray_head.token(home)
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
