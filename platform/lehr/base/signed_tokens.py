"""Tokens that are derived from a secret of the home, and stored nowhere.

A join token is for any machine and expires; ``lehr node token`` prints one. A node token is
for one node name; its machine keeps it, to join again by itself after a restart. Both open only the
routes for joining and leaving, and are an HMAC under the home's token, so a new home token revokes
all of them. The token of an attempt opens its routes and nothing else; the database has its hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from lehr_trainer.files import ensure_secret

JOIN_LIFETIME_S = 24 * 3600.0
_JOIN = "lehr-join"
_NODE = "lehr-node"


@dataclass(frozen=True)
class NodeToken:
    """A valid token. ``node``: the only name for which it is valid; None: any."""

    node: str | None


def join_token(secret: str, expires_at: float) -> str:
    """Return a token with which any machine can join until ``expires_at``."""
    return _signed(secret, _JOIN, str(int(expires_at)))


def node_token(secret: str, node: str) -> str:
    """Return the token with which one node can join again, and leave."""
    return _signed(secret, _NODE, node)


def looks_like_one(given: str) -> bool:
    """Return whether it has the form of such a token, valid or not."""
    return given.startswith((f"{_JOIN}:", f"{_NODE}:"))


def check(secret: str, given: str, *, now: float) -> NodeToken | None:
    """Return what the token is valid for; None if it is invalid or expired."""
    kind, _, rest = given.partition(":")
    subject, _, _ = rest.rpartition(":")
    if kind not in {_JOIN, _NODE} or not subject:
        return None
    right = _signed(secret, kind, subject)
    if not hmac.compare_digest(given.encode("utf-8", "replace"), right.encode()):
        return None
    if kind == _NODE:
        return NodeToken(subject)
    return NodeToken(None) if now < float(subject) else None


def expired(secret: str, given: str, *, now: float) -> bool:
    """Return whether it is a join token of this server that was valid once."""
    return check(secret, given, now=now) is None and check(secret, given, now=0.0) is not None


def _signed(secret: str, kind: str, subject: str) -> str:
    text = f"{kind} 1\n{subject}"
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"{kind}:{subject}:{digest}"


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
