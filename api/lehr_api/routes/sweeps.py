"""Sweeps: launch, list, show, extend, act on, archive, delete, transfer the learning rate."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lehr.analysis import figure_svg
from lehr.analysis.sweep_figure import drawn_sweep
from lehr.app.presenters.forecasts import audit_forecast
from lehr.app.presenters.sweeps import PAGE
from lehr.app.services import archive as archiving
from lehr.app.services.campaigns import campaign_view
from lehr.app.services.extend import extend_sweep
from lehr.app.services.law import law_of
from lehr.app.services.requests import cancel_sweep, note_sweep, retry_sweep
from lehr.app.services.submit import launch_sweep
from lehr.app.services.transfer import transfer_rate
from lehr.base.access import Role
from lehr.control.lifecycle import RunState
from lehr.schemas.base import Page
from lehr.schemas.campaigns import CampaignView
from lehr.schemas.laws import LawView
from lehr.schemas.sweeps import (
    AuditView,
    SweepDeletion,
    SweepDetail,
    SweepFigure,
    SweepView,
    TransferView,
)
from lehr.specs.search import ForecastPruning
from lehr_api.auth import needs
from lehr_api.deps import (
    ChangedSweep,
    Cursor,
    FoundSweep,
    IdempotencyHeader,
    Limit,
    ListQueryDep,
    RequestBody,
    ServicesDep,
)
from lehr_api.problems import problem_responses
from lehr_api.routes.runs import Note, Submission
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import LONG_READS, SUBMISSIONS

router = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=TaggedRoute)
reading = APIRouter(
    prefix="/sweeps", tags=["sweeps"], route_class=TaggedRoute, dependencies=[needs(Role.VIEWER)]
)
"""A request with a body that records nothing."""


class SweepSubmission(Submission):
    spec: dict[str, Any]


@router.post("", status_code=201, response_model=SweepDetail, responses=problem_responses(409))
@SUBMISSIONS.runs
def launch(body: SweepSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a sweep with all its runs and queue them; nothing if any run is invalid."""
    made = launch_sweep(services, body.spec, body.overrides, body.provenance)
    return services.once(key, made)


@router.get("")
def list_sweeps(services: ServicesDep, query: ListQueryDep) -> Page[SweepView]:
    """List sweeps, newest first, one page at a time."""
    found = services.store.sweeps.page(**vars(query))
    return Page[SweepView](
        items=services.presenter.sweeps.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}")
def show(
    sweep: FoundSweep,
    services: ServicesDep,
    state: Annotated[
        list[RunState] | None,
        Query(description="Only trials whose run is in any of these; may be repeated."),
    ] = None,
    run: Annotated[
        list[str] | None,
        Query(
            description="Only the trials of these runs, by id, and the standings of all: what a "
            "live page needs after those runs have changed. May be repeated.",
            max_length=200,
        ),
    ] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> SweepDetail:
    """Return its result with notes, and its trials, ranked at equal step, one page at a time.

    Counts, best trials and all other fields are of the whole sweep, on each page.
    """
    return services.presenter.sweeps.detail(
        sweep, limit=limit, cursor=cursor, states=state, run_ids=run
    )


class Extension(BaseModel):
    """Values, points or trials to add, depending on the sweep's method."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"parameters": {"train.optimizer.lr": [1e-2]}}]},
    )

    parameters: dict[str, list[Any]] | None = None
    """For a grid: more values of its parameters."""
    points: list[dict[str, Any]] | None = None
    """For a list: more points."""
    trials: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """For a random or TPE search: number of trials to add."""
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    """For a campaign: GPU-hours to add to its budget."""


@router.post("/{ref}/retry", response_model=SweepDetail, responses=problem_responses(409))
def retry(sweep: ChangedSweep, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Queue the failed trials again, from their last checkpoints, and those that never ran
    because the sweep was stopped. A failed trial whose run was deleted gets a new run.
    """
    return services.once(key, retry_sweep(services, sweep), status=200)


@router.post("/{ref}/extend", response_model=SweepDetail, responses=problem_responses(409))
@SUBMISSIONS.runs
def extend(
    sweep: FoundSweep, body: Extension, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Add trials, also to a finished sweep; existing ones do not change."""
    added = extend_sweep(services, sweep, **dict(body))
    return services.once(key, added, status=200)


@router.post("/{ref}/cancel")
def cancel(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Stop all its runs that have not ended, without saving. Idempotent."""
    return cancel_sweep(services, sweep)


@router.get("/{ref}/campaign")
@SUBMISSIONS.runs
def campaign(
    sweep: FoundSweep,
    services: ServicesDep,
    steps: Annotated[
        int, Query(ge=0, le=100, description="Trials after which to tell what was known then.")
    ] = 0,
) -> CampaignView:
    """Return what a campaign was asked, has tried, and believes of its target now."""
    return campaign_view(services, sweep, steps)


@router.put("/{ref}/note")
def put_sweep(body: Note, sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Replace the sweep's note; its runs keep theirs. Idempotent."""
    return note_sweep(services, sweep, body.note)


@router.post("/{ref}/archive", responses=problem_responses(409))
def archive_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Archive a finished sweep and its runs. Nothing is deleted. Idempotent."""
    return archiving.archive_sweep(services, sweep)


@router.post("/{ref}/unarchive", responses=problem_responses(409))
def unarchive_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Unarchive a sweep and its runs, except deleted ones."""
    return archiving.unarchive_sweep(services, sweep)


@router.get("/{ref}/deletion")
def sweep_deletion(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """Return what deleting the sweep would free; deletes nothing."""
    return archiving.estimate_sweep_deletion(services, sweep)


@router.delete("/{ref}", responses=problem_responses(409))
def delete_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDeletion:
    """Delete the checkpoints, metrics, logs and files of a finished sweep's runs.

    Its spec, its trials and each run's record stay, archived. Nothing is deleted if one run must be
    kept. Repeating it finishes an interrupted deletion.
    """
    return archiving.delete_sweep(services, sweep)


@router.get("/{ref}/figure")
def figure(
    sweep: FoundSweep,
    services: ServicesDep,
    parameter: Annotated[
        str | None,
        Query(description="The parameter on the x axis; a learning rate if there is one."),
    ] = None,
    width: Annotated[int, Query(ge=200, le=4000, description="In pixels.")] = figure_svg.WIDTH,
    height: Annotated[int, Query(ge=200, le=4000, description="In pixels.")] = figure_svg.HEIGHT,
) -> SweepFigure:
    """Return the sweep's metric against a parameter, with the fit, drawn as SVG."""
    detail = services.presenter.sweeps.outline(sweep)
    return drawn_sweep(detail, parameter, width=width, height=height, links=True)


@router.get("/{ref}/audit")
def audit(sweep: FoundSweep, services: ServicesDep) -> AuditView:
    """Try the rule `forecast`, with the sweep's `min_steps`, on the server's finished sweeps."""
    steps = (sweep.spec.get("pruning") or {}).get("min_steps", 0)
    return audit_forecast(services.store, ForecastPruning(name="forecast", min_steps=steps))


class TransferRequest(RequestBody):
    """The training that needs a rate: the spec of a run or of a rollout."""

    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = {}
    """Values by dotted path that replace those of the spec."""
    rule: Annotated[str | None, Field(max_length=40, examples=["step_law"])] = None
    """Name of a rule; by default the one with the least regret on published runs."""


@reading.post("/{ref}/transfer")
@SUBMISSIONS.runs
def transfer(sweep: FoundSweep, body: TransferRequest, services: ServicesDep) -> TransferView:
    """Return the learning rate for a larger training, with its interval, each rule's answer, and
    the spec as YAML. Nothing is recorded.
    """
    return transfer_rate(services, sweep, body.spec, body.overrides, rule=body.rule)


class LawRequest(RequestBody):
    """The sweeps and runs of a law, by id or name, and the training that it is asked about."""

    refs: Annotated[list[str], Field(min_length=1, max_length=1000, examples=[["lr-grid"]])]
    spec: dict[str, Any] | None = None
    """That training as a run or a rollout; else of the largest run's shape, with these:"""
    parameters: Annotated[float | None, Field(gt=0, lt=1e18)] = None
    """Without embeddings."""
    tokens: Annotated[float | None, Field(gt=0, lt=1e18)] = None
    published: bool = True
    """Whether published runs count as a weak prior."""


@reading.post("/law", responses=problem_responses(404))
@LONG_READS.runs
def law(body: LawRequest, services: ServicesDep) -> LawView:
    """Fit the law of the final loss of runs, and predict a training by it. Nothing is recorded."""
    return law_of(services, **dict(body))
