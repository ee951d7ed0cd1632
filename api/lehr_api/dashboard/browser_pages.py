"""Middleware that shows a page to a browser where others get a JSON problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class PageForBrowsers:
    """Shows a page when a browser opens an address and the answer has one status.

    The status stays. Scripts and clients, which do not accept HTML, keep the JSON problem.
    """

    def __init__(self, app: ASGIApp, *, status: int, page: Callable[[Scope], Response]) -> None:
        self.app = app
        self.status = status
        self.page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _opens_a_page(scope):
            await self.app(scope, receive, send)
            return
        replaced = False

        async def watch(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == self.status:
                replaced = True
            if not replaced:
                await send(message)

        await self.app(scope, receive, watch)
        if replaced:
            await self.page(scope)(scope, receive, send)


def _opens_a_page(scope: Scope) -> bool:
    if scope["method"] != "GET" or scope["path"].startswith(("/api/", "/static/")):
        return False
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
