"""Saved views of the runs page: its address query under a name, for everybody on this server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field

from lehr.schemas.views import SavedView, SavedViews
from lehr_api.deps import StoreDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/views", tags=["views"])

ViewName = Annotated[
    str,
    Path(
        description="Name of the view.",
        examples=["running-omk"],
        pattern=r"^[\w][\w .:+-]{0,59}$",
        max_length=60,
    ),
]


class ViewQuery(Documented):
    """What a view shows."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        max_length=4_000,
        pattern=r"^[^#?\s][^#\s]*$|^$",
        examples=["filter=state:running&sort=loss"],
    )
    """The query of the runs page's address, without its question mark."""


@router.get("", responses=problem_responses())
def views(store: StoreDep) -> SavedViews:
    """List the saved views by name."""
    return SavedViews(views=[SavedView(**row.model_dump()) for row in store.saved_views.all()])


@router.put("/{name}", responses=problem_responses())
def put_view(name: ViewName, body: ViewQuery, store: StoreDep) -> SavedView:
    """Save a view, or replace the one of that name. Idempotent."""
    return SavedView(**store.saved_views.put(name, body.query).model_dump())


@router.delete("/{name}", responses=problem_responses(404))
def delete_view(name: ViewName, store: StoreDep) -> SavedViews:
    """Remove a view; return the others."""
    store.saved_views.remove(name)
    return views(store)
