"""The login page, and middleware that shows it to browsers without a valid token."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from lehr_api.dashboard.pages import render

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def local_target(target: str | None) -> str:
    """Return the target after the login: a path of this server, else the runs page.

    To a browser, two slashes or a slash and a backslash begin the address of another server.
    """
    if not target or not target.startswith("/") or target[1:2] in ("/", "\\"):
        return "/"
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or parts.path.startswith(("/login", "/api/", "/static/")):
        return "/"
    return target


def login_page(
    target: str | None = None, *, error: str | None = None, status: int = 200
) -> HTMLResponse:
    return render("login.html", status=status, target=local_target(target), error=error)


class LoginForBrowsers:
    """Shows the login page when a browser opens a page and gets 401.

    The status stays 401. Scripts and clients, which do not accept HTML, keep the JSON problem.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _opens_a_page(scope):
            await self.app(scope, receive, send)
            return
        refused = False

        async def watch(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == 401:
                refused = True
            if not refused:
                await send(message)

        await self.app(scope, receive, watch)
        if refused:
            query = scope["query_string"].decode("latin-1")
            target = quote(scope["path"]) + (f"?{query}" if query else "")
            await login_page(target, status=401)(scope, receive, send)


def _opens_a_page(scope: Scope) -> bool:
    if scope["method"] != "GET" or scope["path"].startswith(("/api/", "/static/")):
        return False
    headers = dict(scope["headers"])
    return b"text/html" in headers.get(b"accept", b"")
