"""Health and version of the server."""

from __future__ import annotations

import platform
import sqlite3
from typing import Annotated

from fastapi import APIRouter, Query, Request

from lehr import __version__, proof
from lehr.schemas.base import Health
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses

PROTOCOL = 1
"""Versions of the attempt protocol. Shims outlive upgrades, so the previous one is supported,
too.
"""
OLDEST_PROTOCOL = 1

Nonce = Annotated[str | None, Query(pattern="^[0-9a-f]{32,128}$")]

router = APIRouter(tags=["server"])


class Version(Health):
    versions: dict[str, str]
    """Versions of its dependencies."""


_VERSION = Version(
    version=__version__,
    protocol=PROTOCOL,
    versions={"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
)


@router.get("/health", openapi_extra={"security": []})
async def health(request: Request, services: ServicesDep, nonce: Nonce = None) -> Health:
    """Answer without a token, as soon as the server listens.

    With ``nonce``, the answer proves that the server knows its token, so that a client does not
    send the token to another program on the port: HMAC-SHA256 under the token over three lines,
    ``lehr server 1``, the nonce, and the connection's address and port with a space between.
    """
    address = request.scope.get("server")
    proven = None
    if nonce is not None and address is not None:
        proven = proof.prove(services.settings.token, nonce, str(address[0]), int(address[1] or 0))
    return Health(version=__version__, protocol=PROTOCOL, proof=proven)


@router.get("/version", responses=problem_responses())
async def version() -> Version:
    return _VERSION
