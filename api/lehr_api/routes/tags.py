"""Tags of a run: unlike its spec, they may change at any time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from lehr.errors import UserError
from lehr.schemas import RunDetail
from lehr_api import examples
from lehr_api.deps import FoundRun, ServicesDep

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])

MOST = 30
LONGEST = 60


def _findable(tag: str) -> str:
    if not 0 < len(tag) <= LONGEST or "," in tag or any(letter.isspace() for letter in tag):
        raise ValueError(f"a tag is a word of at most {LONGEST} letters, without spaces and commas")
    return tag


Tag = Annotated[
    str,
    AfterValidator(_findable),
    WithJsonSchema({"type": "string", "pattern": r"^[^\s,]+$", "maxLength": LONGEST}),
]


class Tags(BaseModel):
    """All of a run's tags."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    tags: list[Tag] = Field(max_length=MOST, examples=[["omk", "baseline"]])
    """Without spaces and commas; duplicates count once."""


class TagChange(BaseModel):
    """Tags to add and tags to remove."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    add: list[Tag] = Field([], max_length=MOST, examples=[["baseline"]])
    remove: list[Tag] = Field([], max_length=MOST, examples=[["omk"]])
    """A tag that the run does not have is ignored; one in both lists is removed."""


@router.put("/tags", responses=examples.answers(examples.DETAIL, 404))
def put_tags(body: Tags, run: FoundRun, services: ServicesDep) -> RunDetail:
    """Replace the run's tags. Idempotent."""
    tags = list(dict.fromkeys(body.tags))
    return services.presenter.runs.detail(services.store.runs.set_tags(run.id, tags))


@router.post("/tags", responses=examples.answers(examples.DETAIL, 404))
def change_tags(body: TagChange, run: FoundRun, services: ServicesDep) -> RunDetail:
    """Add and remove tags; others stay, also under concurrent changes. Idempotent."""
    store = services.store
    with store.transaction():
        wanted = dict.fromkeys([*store.runs.get(run.id).tags, *body.add])
        tags = [tag for tag in wanted if tag not in body.remove]
        if len(tags) > MOST:
            raise UserError(
                f"{run.name} would have {len(tags)} tags; a run has at most {MOST}.",
                hint="Remove some in the same request.",
            )
        changed = store.runs.set_tags(run.id, tags)
    return services.presenter.runs.detail(changed)
