"""The curves of many runs, for a chart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from lehr.errors import NotFound, UserError
from lehr.presenters.streams import series_view
from lehr.services.find_runs import find_runs

if TYPE_CHECKING:
    from lehr.schemas.streams import Series
    from lehr.store import Store
    from lehr.store.streams.values import SeriesAxis

MOST_POINTS = 2_000_000
"""Of one answer: about 60 MB, and several times that while it is made."""


def curves_of_runs(
    store: Store,
    refs: Sequence[str],
    names: Sequence[str],
    *,
    firsts: Sequence[float] = (),
    x_axis: SeriesAxis = "step",
    points: int = 500,
    last: float | None = None,
    smoothing: float | None = None,
    with_superseded: bool = False,
) -> list[Series]:
    """Return the curves of these metrics, downsampled, in the order of runs and metrics.

    A run without one of the metrics has no curve of it. ``firsts`` is where the curves begin: one
    x for all runs, or one for each.

    Raises:
        NotFound: there is no such run.
        UserError: ``firsts`` has neither one value nor one for each run, or the answer would have
            more than ``MOST_POINTS``.
    """
    if len(firsts) not in {0, 1, len(refs)}:
        raise UserError(
            f"from has {len(firsts)} values for {len(refs)} runs: give one, or one for each run."
        )
    begins: list[float | None] = [*firsts] if firsts else [None]
    starts = dict(zip(refs, begins * len(refs) if len(begins) == 1 else begins, strict=True))
    read = partial(
        store.series.read,
        x_axis=x_axis,
        points=points,
        last=last,
        smoothing=smoothing,
        with_superseded=with_superseded,
    )
    found: list[Series] = []
    total = 0
    for run, first in zip(find_runs(store, starts), starts.values(), strict=True):
        for name in dict.fromkeys(names):
            with suppress(NotFound):  # The run has no such metric.
                found.append(series_view(read(run.id, name, first=first)))
                total += len(found[-1].x)
                if total > MOST_POINTS:
                    raise _too_many("Ask for fewer runs, metrics or points at once.")
    return found


def refuse_too_many(store: Store, run_id: str, names: Sequence[str]) -> None:
    """Refuse to read more exact points than one answer may have; one metric is always read.

    Raises:
        UserError: these metrics have more.
    """
    wanted = set(names)
    if len(wanted) > 1:
        total = sum(one.points for one in store.series.metrics(run_id) if one.name in wanted)
        if total > MOST_POINTS:
            raise _too_many(
                f"These have {total:,}. Ask for fewer metrics at once, or export the run."
            )


def _too_many(hint: str) -> UserError:
    return UserError(f"the answer would have more than {MOST_POINTS:,} points.", hint=hint)
