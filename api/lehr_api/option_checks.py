"""Check options of the server before it starts: a wrong one would fail later, without its name."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from lehr.errors import UserError


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
