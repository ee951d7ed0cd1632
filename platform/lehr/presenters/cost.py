"""Cost of runs and sweeps, beside what a plan expects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lehr.analysis.cost import gpu_hours, priced_gpu
from lehr.analysis.plan import plan_run
from lehr.errors import LehrError
from lehr.lru import Lru
from lehr.schemas.cost import CostView
from lehr.specs.run import RunSpec

if TYPE_CHECKING:
    from lehr.store import Store
    from lehr.store.tables import RunRow

_PLANNED = 64
"""Trials of a sweep that are planned one by one; a larger sweep is planned by that many of them."""


class Costs:
    """Computes costs. Keeps planned GPU-hours, which do not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._planned: Lru[tuple[str, int, str | None], float | None] = Lru(1_000)

    def of_runs(
        self, key: str, run_ids: Sequence[str], *, device: str | None, gpu_type: str | None
    ) -> CostView | None:
        """Return what these runs used together; None before the first attempt.

        Args:
            key: id of the run or sweep, under which the planned hours are kept.
            run_ids: the runs.
            device: the GPU that a trainer of theirs saw, if any.
            gpu_type: the kind that their spec requests, if any.
        """
        times = self._store.attempts.times(run_ids)
        if not times:
            return None
        used = gpu_hours(times, self._store.clock())
        gpu = priced_gpu(device, gpu_type)
        price = gpu.dollars_per_hour if gpu is not None else None
        kind = gpu.kind if gpu is not None else None
        return CostView(
            gpu_hours=used,
            attempts=len(times),
            gpu=kind,
            dollars_per_gpu_hour=price,
            dollars=None if price is None else used * price,
            planned_gpu_hours=self._plan(key, run_ids, kind) if kind is not None else None,
        )

    def _plan(self, key: str, run_ids: Sequence[str], kind: str) -> float | None:
        """Return the GPU-hours that a plan expects of them on that kind of GPU."""
        found = (key, len(run_ids), kind)
        known = self._planned.get(found)
        if known is not None:
            return known
        every = max(1, len(run_ids) // _PLANNED)
        rows = self._store.runs.by_ids(list(itertools.islice(run_ids, 0, None, every)))
        hours = [_planned_hours(row, kind) for row in rows]
        total = sum(one for one in hours if one is not None)
        if not hours or None in hours:
            return None
        planned = total * len(run_ids) / len(hours)
        self._planned.put(found, planned)
        return planned


def _planned_hours(run: RunRow, kind: str) -> float | None:
    try:
        spec = RunSpec.model_validate(run.spec)
    except (ValueError, LehrError):
        return None  # A spec of an earlier version.
    if spec.resources.gpus == 0:
        return 0.0
    resources = spec.resources.model_copy(update={"gpu_type": kind})
    return plan_run(spec.model_copy(update={"resources": resources})).gpu_hours
