"""Compare runs: values, differences, and whether the difference in outcome means anything."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.app.services.compare import CompareAxis, compare_runs, values_of_runs
from lehr.app.services.judge import claims_of, judge_run
from lehr.base.access import current_actor
from lehr.schemas.base import Page
from lehr.schemas.comparisons import ClaimView, ComparisonView
from lehr.schemas.runs import RunValuesView
from lehr_api.deps import ChangedRun, ServicesDep
from lehr_api.problems import problem_responses
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import LONG_READS

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


@router.get("/compare", responses=problem_responses(404))
@LONG_READS.runs
def compare(
    services: ServicesDep,
    run: Annotated[
        list[str],
        Query(
            min_length=2,
            max_length=200,
            description="Runs by id or name, repeated; the first is the baseline.",
            examples=[["k3f9x2ab", "p8w2c4nd"]],
        ),
    ],
    metric: Annotated[
        str,
        Query(description="Default: val/loss; where not all runs have it, one that they have."),
    ] = "",
    x: Annotated[CompareAxis, Query(description="What is held equal.")] = "step",
    by: Annotated[
        str,
        Query(
            max_length=500,
            description="Group the runs by a path of the config, a metric, tag, tag:NAME or "
            "project; several with commas. A metric has a group for each value if these are few "
            "and whole, else parts with about equally many runs; val/loss<2.5 divides at 2.5.",
        ),
    ] = "",
) -> ComparisonView:
    """Compare configs, and the metric where all runs have it.

    A metric under ``val/`` has no delta between runs of different held-out sets.
    """
    return compare_runs(services, run, metric=metric, x_axis=x, by=by)


@router.get("/values", responses=problem_responses(404))
def values(
    services: ServicesDep,
    run: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=5000,
            description="Runs by id or name, repeated; with commas between them, a group.",
            examples=[["k3f9x2ab", "p8w2c4nd,q7m3v5xh"]],
        ),
    ],
    metric: Annotated[
        list[str] | None,
        Query(
            max_length=20,
            description="Metrics whose newest values are returned as well. `best:NAME` is the best"
            " value, `versus:NAME` the difference to the run of the project that has the tag"
            " `reference`, at equal tokens.",
        ),
    ] = None,
    names: Annotated[
        bool, Query(description="Return the names of all metrics that any of them has logged.")
    ] = False,
    by: Annotated[
        str,
        Query(max_length=500, description="Name the group of each run, as `by` of /compare does."),
    ] = "",
    configs: Annotated[bool, Query(description="Return the configs.")] = True,
) -> RunValuesView:
    """Return the configs of runs by dotted path: what is the same in all, and what differs."""
    return values_of_runs(services, run, metric or (), names=names, by=by, configs=configs)


@router.get("/projects")
def list_projects(services: ServicesDep) -> Page[str]:
    """List the projects that have a run which is not archived."""
    return Page[str](items=services.store.runs.projects())


@router.get("/claims")
def list_claims(
    services: ServicesDep,
    by: Annotated[str, Query(description="Who made them. Default: this token's name.")] = "",
) -> Page[ClaimView]:
    """List the claims of a person in order of submission, as they were last judged."""
    return Page[ClaimView](items=claims_of(services, by or current_actor()))


@router.post("/runs/{ref}/judge", responses=problem_responses(400, 409))
@LONG_READS.runs
def judge(
    run: ChangedRun,
    services: ServicesDep,
    add_seeds: Annotated[bool, Query(description="Start the next pairs of runs.")] = False,
) -> ClaimView:
    """Judge the claim of a run: keep, reject or undecided. Safe to repeat."""
    return judge_run(services, run, add_seeds=add_seeds)
