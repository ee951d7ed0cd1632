"""The routes of ``/api/v1``, one file a resource. A new file is found by itself.

Each router or each of its routes states its policy (``auth.needs``). Where a whole router states
none, everybody reads and researchers change.
"""

from __future__ import annotations

import importlib
import pkgutil

from fastapi import APIRouter
from fastapi.routing import APIRoute

from lehr.base.access import Role
from lehr_api.auth import API, is_open, needs, policy_of
from lehr_api.problems import USUAL

router = APIRouter()
_USUAL = needs(Role.VIEWER, Role.RESEARCHER)

for _module in pkgutil.iter_modules(__path__):
    for _name, _part in vars(importlib.import_module(f"{__name__}.{_module.name}")).items():
        if not isinstance(_part, APIRouter) or _name.startswith("_"):
            continue
        _routes = [route for route in _part.routes if isinstance(route, APIRoute)]
        _without = [route.path for route in _routes if policy_of(route.dependencies) is None]
        assert len(_without) in {0, len(_routes)}, f"no policy: {_without}"
        _is_open = any(is_open(f"{API}{route.path}") for route in _routes)
        router.include_router(
            _part,
            dependencies=[_USUAL] if _without else [],
            responses={} if _is_open else USUAL,
        )
