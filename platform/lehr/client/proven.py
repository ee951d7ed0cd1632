"""Authentication that sends a token only after the server has proven that it has it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Generator
from typing import Any

import httpx

from lehr import proof
from lehr.client import cures
from lehr.errors import Unauthorized

HOLDS_S = 30.0
"""Seconds that a proof is valid. A server may end, and another program take its port."""


class ProvenToken(httpx.Auth):
    """Adds the token to requests, and asks for the proof first.

    Raises:
        Unauthorized: there was no proof, or a wrong one; the token was not sent.
    """

    def __init__(self, server: str, token: str, whose: str) -> None:
        """Create the authentication. ``whose`` describes the token in the error message."""
        self._server = server
        self._token = token
        self._whose = whose
        self._proven_at: float | None = None

    def forget(self) -> None:
        """Require a new proof, since the connection broke."""
        self._proven_at = None

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        if self._is_due():
            nonce = secrets.token_hex(16)
            answer = yield self._challenge(request, nonce)
            peer = _peer(answer)
            answer.read()
            self._judge(answer, nonce, peer)
        yield self._with_token(request)

    def _is_due(self) -> bool:
        return self._proven_at is None or time.monotonic() - self._proven_at > HOLDS_S

    def _challenge(self, request: httpx.Request, nonce: str) -> httpx.Request:
        return httpx.Request(
            "GET",
            f"{self._server}/api/v1/health",
            params={"nonce": nonce},
            headers={"User-Agent": request.headers["User-Agent"]},
            extensions=request.extensions,  # Use its time limits.
        )

    def _with_token(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _judge(self, answer: httpx.Response, nonce: str, peer: tuple[str, int] | None) -> None:
        health = _health(answer)
        given = health.get("proof")
        if (
            isinstance(given, str)
            and peer is not None
            and proof.holds(given, self._token, nonce, *peer)
        ):
            self._proven_at = time.monotonic()
            return
        older = given is None and "version" in health and "protocol" in health
        where = answer.request.url.netloc.decode("ascii")
        raise Unauthorized(
            f"the server at {where} has not shown that it knows {self._whose}: "
            "it may be another person's. The token was not sent.",
            hint=cures.not_proven(self._server, older=older),
        )


def _health(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content) if answer.status_code == 200 else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _peer(answer: httpx.Response) -> tuple[str, int] | None:
    """Return the peer address of the connection; it must be read before the body ends and closes
    it.
    """
    try:
        found = answer.extensions["network_stream"].get_extra_info("server_addr")
    except OSError:  # The peer has already closed it.
        return None
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
