"""Lists of runs: which ones, and what is read of each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from sqlalchemy import ColumnElement, Text, func, type_coerce
from sqlalchemy import select as columns
from sqlalchemy.orm import aliased
from sqlmodel import col

from lehr.control.lifecycle import RunState
from lehr.store.records.lists import Filters, filters
from lehr.store.tables import Attempt, RolloutRow, RolloutRun, RunRow, Trial


class RunFilters(Filters, total=False):
    """Those of all lists, and what runs have by themselves."""

    states: Collection[str] | None
    sweep_id: str | None
    within: Literal["sweep", "rollout"] | None
    ids: Collection[str] | None


_ANY = aliased(Attempt)
_NEWEST = (col(Attempt.run_id) == col(RunRow.id)) & (col(Attempt.number) == col(RunRow.attempt))

FACTS = columns(
    *(col(getattr(RunRow, name)) for name in RunRow.model_fields if name != "spec"),
    col(Attempt.last_step),
    col(Attempt.events_applied),
    columns(func.total(_ANY.exited_at)).where(col(_ANY.run_id) == col(RunRow.id)).scalar_subquery(),
    columns(func.max(Trial.id)).where(col(Trial.run_id) == col(RunRow.id)).scalar_subquery(),
).outerjoin_from(RunRow, Attempt, _NEWEST)
"""What changes whenever anything changes that ``lehr.db`` has of a run."""

_STEP = columns(func.max(_ANY.last_step)).where(col(_ANY.run_id) == col(RunRow.id))
SORTED = columns(
    *map(col, (RunRow.id, RunRow.name, RunRow.project, RunRow.state)),
    *map(col, (RunRow.created_at, RunRow.sweep_id, RunRow.attempt)),
    type_coerce(col(RunRow.tags), Text).label("tags"),
    func.coalesce(col(Attempt.last_step), _STEP.scalar_subquery()).label("step"),
).outerjoin_from(RunRow, Attempt, _NEWEST)
"""What a list is sorted by, lists as text; ``WITH_SPECS``: and the spec as text."""
WITH_SPECS = SORTED.add_columns(type_coerce(col(RunRow.spec), Text).label("spec"))


def run_filters(given: RunFilters) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of runs.

    With ``archived=None`` archived runs and others. Without a search, evaluations are listed by
    their ids alone: they belong to the runs that they evaluate. Within rollouts, ``archived`` is of
    these: archiving one leaves its runs as they are.
    """
    rollouts = columns(col(RolloutRow.id))
    within, archived = given.get("within"), given.get("archived", False)
    if within == "rollout" and archived is not None:
        rollouts = rollouts.where(col(RolloutRow.archived) == archived)
        given["archived"] = None if archived else False
    wanted = filters(RunRow, given)
    if (ids := given.get("ids")) is not None:
        wanted.append(col(RunRow.id).in_(ids))
    elif not given.get("search"):
        wanted.append(col(RunRow.evaluates).is_(None))
    if (states := given.get("states")) is not None:
        wanted.append(col(RunRow.state).in_([str(RunState(state)) for state in states]))
    if (sweep_id := given.get("sweep_id")) is not None:
        wanted.append(col(RunRow.sweep_id) == sweep_id)
    if within == "sweep":
        wanted.append(col(RunRow.sweep_id).is_not(None))
    elif within == "rollout":
        runs = columns(col(RolloutRun.run_id))
        wanted.append(col(RunRow.id).in_(runs.where(col(RolloutRun.rollout_id).in_(rollouts))))
    return wanted
