"""Export of a run's metrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from lehr.store.streams import export
from lehr_api import examples
from lehr_api.deps import FoundRun, StoreDep

router = APIRouter(prefix="/runs/{ref}", tags=["metrics"])

_JSONL = "application/x-ndjson"
_PARQUET = "application/vnd.apache.parquet"
_ANSWERS: dict[int | str, dict[str, Any]] = examples.text_answers(
    '{"step":400,"tokens":26214400.0,"time":1260.5,"train/loss":5.188,"val/loss":5.204}\n',
    _JSONL,
    404,
)
_ANSWERS[200]["content"][_PARQUET] = {"schema": {"type": "string"}, "example": "PAR1..."}


@router.get("/export", response_class=Response, responses=_ANSWERS)
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
    made = export.table(store, run.id)
    headers = {"Content-Disposition": f'attachment; filename="{run.id}.{form}"'}
    if form == "parquet":
        return Response(export.parquet(made, run.id), media_type=_PARQUET, headers=headers)
    return StreamingResponse(export.json_lines(made), media_type=_JSONL, headers=headers)
