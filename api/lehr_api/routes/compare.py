"""Compare runs: their differences, and whether the difference in outcome means anything."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.app.services.compare import CompareAxis, compare_runs
from lehr.schemas.comparisons import ComparisonView, DifferenceView, RunResultView
from lehr_api.deps import ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses
from lehr_api.threads import in_long_reads

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


_SET = "6705cb68d0c2f8f7b1e04a4d5f3f6f0a4c0f0be1d6ce5be0a8f5f1f5f0b9a3c2"
_EXAMPLE = ComparisonView(
    runs=["k3f9x2ab", "p8w2c4nd"],
    metric="val/loss",
    x_axis="step",
    common_x=400,
    results=[
        RunResultView(
            run_id="k3f9x2ab",
            name="lr-grid-2",
            state="running",
            x=400,
            value=5.204,
            delta=0.0,
            held_out=_SET,
            batches="same",
            tokens_per_s=31_120.0,
            step_time_s=2.106,
            mfu=0.49,
            memory_bytes=61.3e9,
        ),
        RunResultView(
            run_id="p8w2c4nd",
            name="lr-grid-1",
            state="completed",
            x=400,
            value=5.912,
            delta=0.708,
            held_out=_SET,
            batches="same",
            tokens_per_s=31_180.0,
            step_time_s=2.102,
            mfu=0.49,
            memory_bytes=61.3e9,
        ),
    ],
    differences=[DifferenceView(path="train.optimizer.lr", values=[3e-4, 1e-4], factor=True)],
    noise=None,
    held_out="same",
    batches="same",
    batches_note="the same as lr-grid-2 at all 400 compared steps: lr-grid-1",
    notes=[],
)


@router.get("/compare", responses=problem_responses(404))
@in_long_reads
def compare(
    services: ServicesDep,
    run: Annotated[
        list[str],
        Query(
            min_length=2,
            max_length=100,
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
