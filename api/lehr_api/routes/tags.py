"""Words to find a run by: they may change at any time, its spec may not."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from lehr.views import RunDetail
from lehr_api import examples
from lehr_api.deps import FoundRun, ServicesDep

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])

Tag = Annotated[str, StringConstraints(pattern=r"^[^\s,]+$", max_length=60)]


class Tags(BaseModel):
    """All of a run's tags."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    tags: list[Tag] = Field(max_length=30, examples=[["omk", "baseline"]])
    """Without spaces and commas; one given twice counts once."""


@router.put("/tags", responses=examples.answers(examples.DETAIL, 404))
def put_tags(body: Tags, run: FoundRun, services: ServicesDep) -> RunDetail:
    """Puts these tags in place of the run's. Asking twice is once."""
    tags = list(dict.fromkeys(body.tags))
    return services.presenter.runs.detail(services.store.set_run_tags(run.id, tags))
