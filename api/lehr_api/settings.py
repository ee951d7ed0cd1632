"""Settings of the server, and checks of its options before it starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from lehr.base.home import is_loopback
from lehr.code.archive import LARGEST
from lehr.errors import UserError

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


def check_public_url(url: str | None) -> None:
    """Check that workers and browsers could use the URL.

    Raises:
        UserError: it is no URL of a server.
    """
    if url is None:
        return
    try:
        found = urlsplit(url)
        is_server = found.scheme in {"http", "https"} and bool(found.hostname)
        _ = found.port
    except ValueError:
        is_server = False
    if not is_server:
        raise UserError(
            f"--public-url {url} is no URL of a server.",
            hint="Give scheme, host and port: --public-url http://10.0.0.1:5347",
        )


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Check that the server can use the certificate and its key.

    Raises:
        UserError: a file cannot be used, or the two do not belong together.
    """
    if certificate is None:
        if key is not None:
            raise UserError("--tls-key is given without --tls-certificate.", hint="Give both.")
        return
    if b"-BEGIN CERTIFICATE-" not in _read("--tls-certificate", certificate):
        raise UserError(
            f"--tls-certificate {certificate} has no certificate in PEM form.",
            hint="Such a file begins with -----BEGIN CERTIFICATE-----",
        )
    option, holder = ("--tls-certificate", certificate) if key is None else ("--tls-key", key)
    if b"PRIVATE KEY-" not in _read(option, holder):
        raise UserError(
            f"{option} {holder} has no private key in PEM form.",
            hint="Give the key of the certificate: --tls-key FILE",
        )

    def no_password() -> str:
        raise UserError(
            f"{option} {holder} is encrypted, and a server cannot ask for a passphrase.",
            hint=f"Write one without: openssl pkey -in {holder} -out FILE",
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UserError(
                f"--tls-key {holder} is not the key of --tls-certificate {certificate}.",
                hint="Give the key with which the certificate was requested.",
            ) from None
        raise UserError(
            f"--tls-certificate {certificate} and its key cannot be used: {error.reason or error}.",
            hint="openssl x509 -in FILE -noout -text shows a certificate that is whole.",
        ) from None


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}.") from None
