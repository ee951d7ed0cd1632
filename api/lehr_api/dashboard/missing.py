"""Middleware that shows a page where a browser opens an address that there is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr_api.dashboard.pages import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class MissingForBrowsers:
    """Shows a page with links instead of a JSON problem. The status stays 404."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _opens_a_page(scope):
            await self.app(scope, receive, send)
            return
        missing = False

        async def watch(message: Message) -> None:
            nonlocal missing
            if message["type"] == "http.response.start" and message["status"] == 404:
                missing = True
            if not missing:
                await send(message)

        await self.app(scope, receive, watch)
        if missing:
            page = render("missing.html", status=404, section="", address=scope["path"])
            await page(scope, receive, send)


def _opens_a_page(scope: Scope) -> bool:
    if scope["method"] != "GET" or scope["path"].startswith(("/api/", "/static/")):
        return False
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
