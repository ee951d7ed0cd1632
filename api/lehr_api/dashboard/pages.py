"""The pages: each is rendered from its template, and filled by its module from the public API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lehr_api.dashboard import assets
from lehr_api.pages import PAGES, SECTIONS, DashboardPage

if TYPE_CHECKING:
    from starlette.types import Scope

    from lehr_api.auth import Person

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
    return HTMLResponse(html, status, {"Cache-Control": "no-store", **assets.SECURITY_HEADERS})


def missing_page(scope: Scope) -> HTMLResponse:
    """Return the page for an address that there is not."""
    return render("missing", status=404, section="", address=scope["path"])


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
