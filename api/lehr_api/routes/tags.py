"""Tags of a run: unlike its spec, they may change at any time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema

from lehr.app.services import requests as tagging
from lehr.app.services.requests import LONGEST_TAG, MOST_TAGS, checked_tag
from lehr.schemas.runs import RunDetail
from lehr_api.deps import ChangedRun, ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])

Tag = Annotated[
    str,
    AfterValidator(checked_tag),
    WithJsonSchema({"type": "string", "pattern": r"^[^\s,]+$", "maxLength": LONGEST_TAG}),
]


class Tags(Documented):
    """All of a run's tags."""

    model_config = ConfigDict(extra="forbid")

    tags: list[Tag] = Field(max_length=MOST_TAGS, examples=[["omk", "baseline"]])
    """Without spaces and commas; duplicates count once."""


class TagChange(Documented):
    """Tags to add and tags to remove."""

    model_config = ConfigDict(extra="forbid")

    add: list[Tag] = Field([], max_length=MOST_TAGS, examples=[["baseline"]])
    remove: list[Tag] = Field([], max_length=MOST_TAGS, examples=[["omk"]])
    """A tag that the run does not have is ignored; one in both lists is removed."""


@router.put("/tags", responses=problem_responses(404))
def put_tags(body: Tags, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the run's tags. Idempotent."""
    return tagging.replace_tags(services, run, body.tags)


@router.post("/tags", responses=problem_responses(404))
def change_tags(body: TagChange, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Add and remove tags; others stay, also under concurrent changes. Idempotent."""
    return tagging.change_tags(services, run, add=body.add, remove=body.remove)
