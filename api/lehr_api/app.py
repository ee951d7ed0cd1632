"""``create_app``: the API and the dashboard as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

from lehr import __version__
from lehr.base.lru import Lru
from lehr.errors import NotFound
from lehr.schemas.base import Problem
from lehr_api import agents, dashboard, login, problems, prometheus, routes
from lehr_api.auth import API
from lehr_api.middleware import Guard
from lehr_api.services import Services, running
from lehr_api.settings import Settings
from lehr_api.worker_lane import serve_workers_first

Opener = Callable[["Settings"], AbstractAsyncContextManager[Services]]
_ATTEMPTS_KNOWN = 4_096
"""More than send at the same time on a large cluster; 200 bytes each."""
_SMALLEST_COMPRESSED = 1_000
"""Bytes below which an answer fits into one packet anyway; those to workers are smaller."""
_COMPRESSION_LEVEL = 6
"""Of 160 rows, 240 kB, level 4 leaves 27 kB in 1.6 ms, 6 24 kB in 2.8 ms, 9 23 kB in 5.7 ms."""
_AS_THEY_ARE = (
    *DEFAULT_EXCLUDED_CONTENT_TYPES,  # The event stream is one of them.
    # Weights hardly shrink, and may have gigabytes.
    "application/octet-stream",
    "application/vnd.apache.parquet",
    # Archives of code, which are read by their digest.
    "application/x-tar",
)


def create_app(settings: Settings, *, services: Opener = running) -> FastAPI:
    """Create the application; its lifespan opens and closes its ``services``, by default the real
    ones.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services(settings) as opened:
            app.state.services = opened
            yield

    app = FastAPI(
        title="Lehr",
        version=__version__,
        summary="Runs, sweeps and rollouts of one Lehr server.",
        description=_ABOUT,
        lifespan=lifespan,
        openapi_url=f"{API}/openapi.json",
        # FastAPI's pages for the API load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        # A mistyped slash gives a 404 with a reason, not a redirect that loses a POST's body.
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: (
            f"{route.tags[0]}_{route.name}" if route.tags else route.name
        ),
    )
    problems.install(app)
    app.include_router(routes.router, prefix=API)
    app.include_router(login.router)
    app.include_router(prometheus.router, responses=problems.USUAL)
    agents.install(app, settings)
    guard = partial(
        Guard,
        settings=settings,
        attempt_token_sha256=_attempt_tokens(app),
        store=lambda: app.state.services.store,
        ended_logins=lambda: app.state.services.ended_logins,
    )
    app.add_middleware(guard)
    dashboard.install(app)
    # It must see what all other middleware answers.
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_SMALLEST_COMPRESSED,
        compresslevel=_COMPRESSION_LEVEL,
        exclude_content_types=_AS_THEY_ARE,
    )
    serve_workers_first(app, guard)
    _describe(app)
    return app


def _attempt_tokens(app: FastAPI) -> Callable[[str], Any]:
    """Return the digest of an attempt's token. Digests never change, so they are cached."""
    known: Lru[str, str] = Lru(_ATTEMPTS_KNOWN)

    async def token_sha256(attempt_id: str) -> str | None:
        found = known.get(attempt_id)
        if found is not None:
            return found
        services: Services = app.state.services
        try:
            attempt = await to_thread.run_sync(services.store.attempts.get, attempt_id)
        except NotFound:
            return None
        known.put(attempt_id, attempt.token_sha256)
        return attempt.token_sha256

    return token_sha256


def _describe(app: FastAPI) -> None:
    """Complete the OpenAPI description: authentication and problem answers."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            components = schema.setdefault("components", {})
            for kind in (Problem, problems.OffsetProblem):
                components.setdefault("schemas", {})[kind.__name__] = kind.model_json_schema()
            components["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": _TOKEN},
                "attempt": {"type": "http", "scheme": "bearer", "description": _ATTEMPT_TOKEN},
            }
            for path, methods in schema["paths"].items():
                scheme = "attempt" if path.startswith(f"{API}/attempts/") else "token"
                for operation in methods.values():
                    operation.setdefault("security", [{scheme: []}])
                    usual = problems.usual_responses(path, has_body="requestBody" in operation)
                    operation["responses"] = dict(sorted((usual | operation["responses"]).items()))
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


_ABOUT = """\
Times are seconds since the epoch (UTC). An unknown value is null, never 0. Numbers that are not
finite are the strings "NaN", "Infinity" and "-Infinity".

Every error is `application/problem+json` (RFC 9457) with a machine-readable `code`, and a `hint`
where there is something to try. Lists come in pages: pass `next_cursor` as `cursor`. Answers
to GET carry an ETag. Submissions accept an `Idempotency-Key`, so that repeating them within
seven days is safe.
"""
_TOKEN = "The token in Lehr's home. A browser has a cookie instead; see /login."  # noqa: S105
_ATTEMPT_TOKEN = "The attempt's own token, which its worker received at the start."  # noqa: S105
