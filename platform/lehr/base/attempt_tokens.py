"""Tokens of attempts: each opens one attempt's routes and nothing else.

They are derived from a key in the home (mode 0600). So a server that was killed between recording
and starting an attempt can still start it. The database has only their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from lehr_trainer.files import ensure_secret


class AttemptTokens:
    def __init__(self, home: Path) -> None:
        self._key = ensure_secret(home / "attempt-key", secrets.token_bytes(32))

    def token(self, attempt_id: str) -> str:
        digest = hmac.digest(self._key, attempt_id.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def sha256(self, attempt_id: str) -> str:
        return sha256(self.token(attempt_id))


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
