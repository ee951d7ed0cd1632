"""Tokens of attempts: each opens one attempt's routes and nothing else.

They are derived from a key in the home (mode 0600). So a server that was killed between recording
and starting an attempt can still start it. The database has only their hashes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path


class AttemptTokens:
    def __init__(self, home: Path) -> None:
        self._key = _key(home / "attempt-key")

    def token(self, attempt_id: str) -> str:
        digest = hmac.digest(self._key, attempt_id.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def sha256(self, attempt_id: str) -> str:
        return sha256(self.token(attempt_id))


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def matches(token: str, token_sha256: str) -> bool:
    return hmac.compare_digest(sha256(token), token_sha256)


def _key(path: Path) -> bytes:
    """Return the key in the file; create it atomically at the first call."""
    if not path.exists():
        draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(32))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):  # Of two processes, the first wins.
            os.link(draft, path)
        draft.unlink()
    return path.read_bytes()
