"""Whether a server answers, and which."""

from __future__ import annotations

import platform
import sqlite3
from typing import Any

from fastapi import APIRouter

from lehr import __version__
from lehr.views import Health
from lehr_api import examples

PROTOCOL = 1
"""Of the attempts' routes. Shims outlive upgrades, so the version before is spoken too."""
OLDEST_PROTOCOL = 1

router = APIRouter(tags=["server"])


class Version(Health):
    versions: dict[str, str]
    """Of what it runs on."""


_VERSION = Version(
    version=__version__,
    protocol=PROTOCOL,
    versions={"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
)
_NO_PROBLEMS: dict[int | str, dict[str, Any]] = {200: examples.answers(examples.HEALTH)[200]}


@router.get("/health", responses=_NO_PROBLEMS, openapi_extra={"security": []})
async def health() -> Health:
    """Answers without a token, as soon as the server listens."""
    return Health(version=__version__, protocol=PROTOCOL)


@router.get("/version", responses=examples.answers(_VERSION))
async def version() -> Version:
    return _VERSION
