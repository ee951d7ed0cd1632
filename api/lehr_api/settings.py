"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from lehr.base.home import is_loopback
from lehr.code.archive import LARGEST

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    home: Path
    token: str
    """The token that users' requests must have."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = 5347
    public_url: str | None = None
    """URL at which workers and users reach the server, if it differs from ``host`` and ``port``."""
    allowed_hosts: tuple[str, ...] = ()
    """Additional names by which requests may address the server."""
    gpus: int | None = None
    """Logical GPUs to declare on a machine without any."""
    ray_address: str | None = None
    """An existing Ray cluster; None starts a head on this machine."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None

    body_limit: int = 4 * MEBIBYTE
    """Maximum bytes of a JSON body."""
    chunk_limit: int = MEBIBYTE
    """Maximum bytes of one piece of a stream."""
    appends_waiting: int = 4096
    """Pieces of streams that may wait to be written; more are rejected with Retry-After."""
    append_bytes_waiting: int = 64 * MEBIBYTE
    """Bytes of these pieces; more are rejected with Retry-After."""
    code: Literal["any", "installed"] = "any"
    """installed: train with the installed trainer only, and accept no code."""
    trainers: tuple[str, ...] = ()
    """With code installed: modules that may train besides Lehr's trainer."""
    capsule_limit: int = LARGEST
    """Maximum bytes of a capsule."""
    heartbeat_s: float = 15.0
    """Seconds between the event stream's heartbeats."""

    @property
    def url(self) -> str:
        if self.public_url:
            return self.public_url.rstrip("/")
        scheme = "https" if self.tls_certificate else "http"
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host  # noqa: S104 - compared, not bound
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def url_is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")
