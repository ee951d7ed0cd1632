"""Reject unknown query parameters: a filter that was ignored silently would show everything."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute

from lehr.errors import UserError, nearest

if TYPE_CHECKING:
    from fastapi.dependencies.models import Dependant
    from starlette.requests import Request
    from starlette.responses import Response


class StrictRoute(APIRoute):
    """Answers 422 to an unknown query parameter, and suggests a similar one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = list(dict.fromkeys(_query(self.dependant)))

        async def handle_strictly(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    raise _unknown(name, known)
            return await handle(request)

        return handle_strictly


def _query(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query(inner)


def _unknown(name: str, known: list[str]) -> UserError:
    near = nearest(name, known)
    there_are = f"There are: {', '.join(known)}" if known else "This route takes none."
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    return UserError(
        f"{shown} is not a query parameter of this route.",
        hint=f"Did you mean {near}?   {there_are}" if near else there_are,
    )
