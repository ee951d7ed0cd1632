"""The pages: each is rendered from its template, and filled by its module from the public API.

A page has a row in ``PAGES`` and a module of its name in ``static/js/pages``. It also has a
template of its name in ``templates`` if the common one, ``page.html``, is not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lehr_api.dashboard import assets
from lehr_api.logins import Person


@dataclass(frozen=True)
class NavigationLink:
    """A link at the top of every page, and its key after ``g``."""

    name: str
    address: str
    key: str


@dataclass(frozen=True)
class DashboardPage:
    """A page without data: its module reads the API with the token of the reader."""

    name: str
    address: str
    """Its parameters are values of the template."""
    section: str
    """Name of the link that is marked while the page is open."""


SECTIONS = (
    NavigationLink("runs", "/", "r"),
    NavigationLink("sweeps", "/sweeps", "s"),
    NavigationLink("rollouts", "/rollouts", "o"),
    NavigationLink("cluster", "/cluster", "c"),
)

PAGES = (
    DashboardPage("runs", "/", "runs"),
    DashboardPage("run", "/runs/{run_id}", "runs"),
    DashboardPage("runs", "/sweeps", "sweeps"),
    DashboardPage("sweep", "/sweeps/{sweep_id}", "sweeps"),
    DashboardPage("law", "/law", "sweeps"),
    DashboardPage("runs", "/rollouts", "rollouts"),
    DashboardPage("rollout", "/rollouts/{rollout_id}", "rollouts"),
    DashboardPage("compare", "/compare", "runs"),
    DashboardPage("cluster", "/cluster", "cluster"),
)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(
    page: str, *, status: int = 200, person: Person | None = None, **values: Any
) -> HTMLResponse:
    """Render a page; never cached, since it names the current files and its reader's role."""
    entry = f"js/pages/{page}.js"
    html = _templates.select_template([f"{page}.html", "page.html"]).render(
        page=page,
        static=assets.static_url(""),
        entry=assets.static_url(entry),
        preloads=assets.modules(entry),
        sections=SECTIONS,
        person=person,
        **values,
    )
    return HTMLResponse(html, status, assets.POLICY)


def missing_page(scope: Scope) -> HTMLResponse:
    """Return the page for an address that there is not."""
    return render("missing", status=404, section="", address=scope["path"])


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


def _add(page: DashboardPage) -> None:
    def show(request: Request) -> HTMLResponse:
        return render(
            page.name,
            person=request.state.person,
            section=page.section,
            **request.path_params,
        )

    router.add_api_route(page.address, show, name=f"{page.name}_page")


for _page in PAGES:
    _add(_page)
