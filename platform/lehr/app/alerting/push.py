"""Web Push: messages to browsers that asked for them, with a key pair of this home's own.

The push service of the browser's maker carries a message, and cannot read it. Sources: RFC 8030
(delivery), RFC 8188 and 8291 (encryption), RFC 8292 (who sends it).
"""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lehr.errors import UserError
from lehr_trainer.files import write_atomically

PREFIX = "push:"  # Of the names of devices, among those of webhooks in the outbox.
SERVICES = (
    "fcm.googleapis.com",
    "push.services.mozilla.com",
    "push.apple.com",
    "notify.windows.com",
)
"""Hosts of the push services of browsers. Any reader names an address, so no others are used."""
MOST_EACH = 20  # Devices of a person. A new one takes the place of the oldest.
_FILE = "push.json"
_CURVE = ec.SECP256R1()
_TOKEN_S = 12 * 3600
_KEPT_S = 86_400
_RECORD = 4096  # Bytes of the one record of a message, which push services take at least.
_TEXT = 900  # Characters of a message's text: at most four bytes each.


class Device(NamedTuple):
    """A browser that gets messages."""

    person: str
    endpoint: str
    p256dh: str
    auth: str
    since: float


class Devices:
    """The devices of one home, and the key pair that its messages are signed with.

    May be used from any thread of its server.
    """

    def __init__(self, home: Path, *, url: str) -> None:
        """``url`` of the server; Apple's service requires a contact with a public host."""
        self._path = home / _FILE
        self._contact = url if url.startswith("https:") else "mailto:lehr@example.com"
        self._guard = threading.Lock()

    def all(self) -> Iterator[tuple[str, Device]]:
        """Yield the names and devices."""
        with self._guard:
            stored = self._read()
        for name, fields in stored.get("devices", {}).items():
            yield name, Device(**fields)

    @property
    def public_key(self) -> str:
        """The key that a browser subscribes with. It is made when it is first asked for."""
        return _public(_private(self._with_key()))

    def put(self, device: Device) -> str:
        """Store a device, old or new, and return its name.

        Raises:
            UserError: the address is none of a known push service, or a key is none.
        """
        parts = urlsplit(device.endpoint)
        host = parts.hostname or ""
        if parts.scheme != "https" or not any(
            host == known or host.endswith(f".{known}") for known in SERVICES
        ):
            raise UserError(
                f"endpoint: {host or device.endpoint!r} is no push service that is known here.",
                hint=f"Known are https addresses of {', '.join(SERVICES)}.",
            )
        try:
            encrypted(b"", device.p256dh, device.auth)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UserError(f"p256dh or auth is no key of a subscription: {error}.") from error
        name = PREFIX + sha256(device.endpoint.encode()).hexdigest()[:16]
        with self._guard:
            stored = self._read()
            devices = stored.setdefault("devices", {})
            devices.pop(name, None)
            own = [other for other, fields in devices.items() if fields["person"] == device.person]
            for other in own[: max(len(own) - MOST_EACH + 1, 0)]:
                del devices[other]
            devices[name] = device._asdict()
            self._write(stored)
        return name

    def remove(self, name: str) -> None:
        with self._guard:
            stored = self._read()
            if stored.get("devices", {}).pop(name, None):
                self._write(stored)

    def message(self, name: str, body: dict[str, Any]) -> tuple[str, dict[str, str], bytes] | None:
        """Return the address, headers and content of a message; None if the device is gone."""
        stored = self._with_key()
        if (fields := stored.get("devices", {}).get(name)) is None:
            return None
        device, key = Device(**fields), _private(stored)
        run = body.get("run", {})
        shown = {
            "title": run.get("name", "Lehr"),
            "body": body["text"].removesuffix(f" {run.get('url')}")[:_TEXT],
            "path": urlsplit(run.get("url", "")).path or "/",
            # A later message of a run, and of a sweep's trials, takes the place of an earlier one.
            "tag": run.get("sweep") or run.get("id") or "lehr",
        }
        content = encrypted(json.dumps(shown).encode(), device.p256dh, device.auth)
        token = self._token(f"https://{urlsplit(device.endpoint).netloc}", key)
        headers = {
            "Authorization": f"vapid t={token}, k={_public(key)}",
            "Content-Encoding": "aes128gcm",
            "TTL": str(_KEPT_S),
            "Urgency": "high" if body["event"] == "alert" else "normal",
        }
        return device.endpoint, headers, content

    def _token(self, audience: str, key: ec.EllipticCurvePrivateKey) -> str:
        """Return the signed statement of who sends (RFC 8292, section 2)."""
        claims = {"aud": audience, "exp": int(time.time()) + _TOKEN_S, "sub": self._contact}
        signed = ".".join(
            _text(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ES256"}, claims)
        )
        numbers = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{_text(b''.join(number.to_bytes(32, 'big') for number in numbers))}"

    def _with_key(self) -> dict[str, Any]:
        """Return what is stored. The key pair is made when it is first needed."""
        with self._guard:
            stored = self._read()
            if "key" not in stored:
                number = ec.generate_private_key(_CURVE).private_numbers().private_value
                stored["key"] = _text(number.to_bytes(32, "big"))
                self._write(stored)
        return stored

    def _read(self) -> dict[str, Any]:
        try:
            stored: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        return stored

    def _write(self, stored: dict[str, Any]) -> None:
        write_atomically(self._path, json.dumps(stored, indent=1), mode=0o600)


def encrypted(
    text: bytes,
    p256dh: str,
    auth: str,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> bytes:
    """Return a message that only the subscription with these keys can read.

    RFC 8291, section 3.4, as one record of RFC 8188. ``key`` and ``salt``: None draws new ones.

    Raises:
        ValueError: a key is not in the form of a subscription's.
    """
    key, salt = key or ec.generate_private_key(_CURVE), salt or os.urandom(16)
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _bytes(p256dh))
    secret, own = _bytes(auth), _point(key.public_key())
    if len(secret) != 16:
        raise ValueError("auth has not 16 bytes")
    about = b"WebPush: info\0" + _point(receiver) + own
    shared = _derived(key.exchange(ec.ECDH(), receiver), secret, about, 32)
    content_key = _derived(shared, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(shared, salt, b"Content-Encoding: nonce\0", 12)
    sealed = AESGCM(content_key).encrypt(nonce, text + b"\2", None)
    return salt + _RECORD.to_bytes(4, "big") + bytes([len(own)]) + own + sealed


def _derived(secret: bytes, salt: bytes, about: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, about).derive(secret)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    form, uncompressed = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    return key.public_bytes(form, uncompressed)


def _private(stored: dict[str, Any]) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(_bytes(stored["key"]), "big"), _CURVE)


def _public(key: ec.EllipticCurvePrivateKey) -> str:
    return _text(_point(key.public_key()))


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
