"""The login page, also where a browser without a valid token opens another page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from lehr_api.dashboard.pages import render

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse
    from starlette.types import Scope


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
    target: str | None = None,
    *,
    error: str | None = None,
    status: int = 200,
    code: str | None = None,
) -> HTMLResponse:
    """Return the page. With the ``code`` of a login link it asks for no token, but for a click:
    programs that look at links must not use them up.
    """
    return render("login", status=status, target=local_target(target), error=error, code=code)


def login_instead(scope: Scope) -> HTMLResponse:
    """Return the login page for an address that needs a token; it leads back to the address."""
    query = scope["query_string"].decode("latin-1")
    target = quote(scope["path"]) + (f"?{query}" if query else "")
    return login_page(target, status=401)
