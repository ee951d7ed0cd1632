"""Health and version of the server."""

from __future__ import annotations

import platform
import sqlite3

from fastapi import APIRouter

from lehr import __version__
from lehr.base.access import Role
from lehr.schemas.base import Health
from lehr_api.auth import needs
from lehr_api.problems import problem_responses

PROTOCOL = 1
"""Versions of the attempt protocol. Shims outlive upgrades, so the previous one is supported,
too.
"""
OLDEST_PROTOCOL = 1

router = APIRouter(tags=["server"])


class Version(Health):
    versions: dict[str, str]
    """Versions of its dependencies."""


_VERSION = Version(
    version=__version__,
    protocol=PROTOCOL,
    versions={"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
)


@router.get("/health", dependencies=[needs(None)], openapi_extra={"security": []})
async def health() -> Health:
    """Answer without a token, as soon as the server listens."""
    return Health(version=__version__, protocol=PROTOCOL)


@router.get("/version", dependencies=[needs(Role.VIEWER)], responses=problem_responses())
async def version() -> Version:
    return _VERSION
