"""Reports: a run, sweep or rollout as one HTML page that makes no request, to send or print."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from lehr.app.services.report import report_rollout, report_run, report_sweep
from lehr_api.deps import FoundRollout, FoundRun, FoundSweep, ServicesDep
from lehr_api.problems import text_responses
from lehr_api.threads import LONG_READS

router = APIRouter()
_HTML = text_responses("text/html", 404)


def _page(html: str, name: str) -> HTMLResponse:
    # Text of users is escaped; the sandbox would stop a script even so.
    headers = {
        "Content-Disposition": f'inline; filename="{name}.html"',
        "Content-Security-Policy": "sandbox; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(html, headers=headers)


@router.get("/runs/{ref}/report", tags=["runs"], response_class=HTMLResponse, responses=_HTML)
@LONG_READS.runs
def run_report(run: FoundRun, services: ServicesDep) -> HTMLResponse:
    """Return a page with result, curves, cost, checkpoints, config and provenance of a run."""
    return _page(report_run(services, run), run.id)


@router.get("/sweeps/{ref}/report", tags=["sweeps"], response_class=HTMLResponse, responses=_HTML)
@LONG_READS.runs
def sweep_report(sweep: FoundSweep, services: ServicesDep) -> HTMLResponse:
    """Return a page with verdict, evidence, trials, curves, cost and config of a sweep."""
    return _page(report_sweep(services, sweep), sweep.id)


@router.get(
    "/rollouts/{ref}/report", tags=["rollouts"], response_class=HTMLResponse, responses=_HTML
)
@LONG_READS.runs
def rollout_report(rollout: FoundRollout, services: ServicesDep) -> HTMLResponse:
    """Return a page with stages, gates, curves, cost and config of a rollout."""
    return _page(report_rollout(services, rollout), rollout.id)
