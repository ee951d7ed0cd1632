"""Dependencies of the routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from pydantic import ConfigDict

from lehr.app.services import budget
from lehr.store import Store
from lehr.store.tables import RolloutRow, RunRow, SweepRow
from lehr_api.services import Services
from lehr_trainer.configs.base import Documented


class RequestBody(Documented):
    """The JSON body of a request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


async def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


async def store(request: Request) -> Store:
    return (await services(request)).store


ServicesDep = Annotated[Services, Depends(services)]
StoreDep = Annotated[Store, Depends(store)]


def _reference(noun: str, example: str) -> Any:
    return Path(
        description=f"A {noun}'s id, a unique prefix of one (four letters or more), or a name "
        "(the newest of that name).",
        examples=[example],
        max_length=100,
    )


RunRef = Annotated[str, _reference("run", "k3f9x2ab")]
SweepRef = Annotated[str, _reference("sweep", "lr-grid")]
RolloutRef = Annotated[str, _reference("rollout", "llama-1b")]
AttemptId = Annotated[
    str, Path(description="`<run id>-<number>`.", examples=["k3f9x2ab-1"], max_length=100)
]


def found_run(ref: RunRef, store: StoreDep) -> RunRow:
    return store.runs.find(ref)


def found_sweep(ref: SweepRef, store: StoreDep) -> SweepRow:
    return store.sweeps.find(ref)


def found_rollout(ref: RolloutRef, store: StoreDep) -> RolloutRow:
    return store.rollouts.find(ref)


def changed(find: Callable[..., Any]) -> Any:
    """Return what ``find`` does, for a route that changes it.

    A token with a budget changes only what it submitted.
    """

    def own(services: ServicesDep, row: Any = Depends(find)) -> Any:  # noqa: B008 - a closure
        budget.refuse_others(services, row)
        return row

    return Depends(own)


FoundRun = Annotated[RunRow, Depends(found_run)]
FoundSweep = Annotated[SweepRow, Depends(found_sweep)]
FoundRollout = Annotated[RolloutRow, Depends(found_rollout)]
ChangedRun = Annotated[RunRow, changed(found_run)]
ChangedSweep = Annotated[SweepRow, changed(found_sweep)]
ChangedRollout = Annotated[RolloutRow, changed(found_rollout)]

IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Names this submission: sent again with the same key and body, it records "
        "nothing more and gets what the first one made, as it is now. A key is remembered for "
        "seven days.",
        min_length=1,
        max_length=200,
        examples=["0b6f6f0e6c3f4f0c9f6b7d1f4e6a2c11"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
Cursor = Annotated[
    str | None, Query(description="`next_cursor` of the previous page.", pattern="^[0-9]{1,18}$")
]


@dataclass
class ListQuery:
    """The query parameters that all lists have."""

    project: str | None = None
    name: str | None = None
    tag: str | None = None
    search: Annotated[
        str | None, Query(description="Part of a name, id, project or tag.", max_length=200)
    ] = None
    note: Annotated[str | None, Query(description="Part of the note.", max_length=200)] = None
    archived: bool = False
    limit: Limit = 100
    cursor: Cursor = None


ListQueryDep = Annotated[ListQuery, Depends()]
