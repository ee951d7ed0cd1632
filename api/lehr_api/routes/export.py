"""Export of a run's metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from lehr.store.streams import export
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.responses import text_responses
from lehr_api.threads import in_long_reads

router = APIRouter(prefix="/runs/{ref}", tags=["metrics"])

_JSONL = "application/x-ndjson"
_PARQUET = "application/vnd.apache.parquet"


@router.get("/export", response_class=Response, responses=text_responses([_JSONL, _PARQUET], 404))
@in_long_reads
def export_metrics(
    run: FoundRun,
    store: StoreDep,
    form: Annotated[
        Literal["jsonl", "parquet"], Query(alias="format", description="Of the file.")
    ] = "jsonl",
) -> Response:
    """Export every point of every metric: one row per step, one column per metric.

    `tokens` are those trained on so far, `time` the seconds since the first point. A missing value
    is absent (jsonl) or null (parquet). Superseded points are left out.
    """
    made = export.table(store.series, run.id)
    headers = {"Content-Disposition": f'attachment; filename="{run.id}.{form}"'}
    if form == "parquet":
        return Response(export.parquet(made, run.id), media_type=_PARQUET, headers=headers)
    return StreamingResponse(export.json_lines(made), media_type=_JSONL, headers=headers)
