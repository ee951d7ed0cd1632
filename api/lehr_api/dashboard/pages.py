"""The pages: a template each, filled by its module from the public API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lehr_api.dashboard import assets
from lehr_api.dashboard.csp import security_headers

if TYPE_CHECKING:
    from starlette.types import Scope

    from lehr_api.auth import Person

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True)
class NavigationLink:
    """A link at the top of every page, and its key after ``g``."""

    name: str
    address: str
    key: str


SECTIONS = (
    NavigationLink("runs", "/", "r"),
    NavigationLink("sweeps", "/sweeps", "s"),
    NavigationLink("rollouts", "/rollouts", "o"),
    NavigationLink("cluster", "/cluster", "c"),
)

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(
    template: str, *, status: int = 200, person: Person | None = None, **values: Any
) -> HTMLResponse:
    """Render a page; never cached, since it names the current files and its reader's role."""
    entry = f"js/pages/{template.removesuffix('.html')}.js"
    html = _templates.get_template(template).render(
        static=assets.static_url(""),
        plotly=assets.plotly_url(),
        entry=assets.static_url(entry),
        preloads=assets.modules(entry),
        sections=SECTIONS,
        person=person,
        **values,
    )
    return HTMLResponse(html, status, {"Cache-Control": "no-store", **security_headers()})


def missing_page(scope: Scope) -> HTMLResponse:
    """Return the page for an address that there is not."""
    return render("missing.html", status=404, section="", address=scope["path"])


@router.get("/")
def runs_page(request: Request) -> HTMLResponse:
    return render("runs.html", person=request.state.person, section="runs")


@router.get("/runs/{run_id}")
def run_page(run_id: str, request: Request) -> HTMLResponse:
    return render("run.html", person=request.state.person, section="runs", run_id=run_id)


@router.get("/sweeps")
def sweeps_page(request: Request) -> HTMLResponse:
    return render("sweeps.html", person=request.state.person, section="sweeps")


@router.get("/sweeps/{sweep_id}")
def sweep_page(sweep_id: str, request: Request) -> HTMLResponse:
    return render("sweep.html", person=request.state.person, section="sweeps", sweep_id=sweep_id)


@router.get("/rollouts")
def rollouts_page(request: Request) -> HTMLResponse:
    return render("rollouts.html", person=request.state.person, section="rollouts")


@router.get("/rollouts/{rollout_id}")
def rollout_page(rollout_id: str, request: Request) -> HTMLResponse:
    return render(
        "rollout.html", person=request.state.person, section="rollouts", rollout_id=rollout_id
    )


@router.get("/compare")
def compare_page(request: Request) -> HTMLResponse:
    return render("compare.html", person=request.state.person, section="runs")


@router.get("/cluster")
def cluster_page(request: Request) -> HTMLResponse:
    return render("cluster.html", person=request.state.person, section="cluster")
