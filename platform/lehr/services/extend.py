"""Extend a sweep: add trials, also to a finished one. Existing trials do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lehr.errors import Conflict
from lehr.services import checks
from lehr.services.once import Operation, nothing_to_check
from lehr.specs import SweepSpec
from lehr.specs.search import point_key
from lehr.specs.sweep_expand import trials_at
from lehr.specs.sweep_extend import extended

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store.tables import SweepRow


def extend_sweep(
    context: Context,
    sweep: SweepRow,
    *,
    parameters: Mapping[str, Sequence[Any]] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    trials: int | None = None,
) -> Operation[SweepDetail]:
    """Add trials to a sweep; which argument to use depends on its method.

    Args:
        context: the objects that the services use.
        sweep: the sweep to extend.
        parameters: for a grid: further values.
        points: for a list: further trials.
        trials: for a search: the number of further trials.
    """
    store = context.store

    def record() -> SweepDetail:
        before = SweepSpec.model_validate(store.sweeps.get(sweep.id).spec)
        known = [trial.parameters for trial in store.sweeps.trials(sweep.id)]
        spec = extended(before, parameters=parameters, points=points, trials=trials)
        added = _added(spec, known)
        checks.check_sweep(context, added)
        if not store.sweep_progress.add_trials(
            sweep.id, added, known=len(known), actor="user", spec=spec
        ):
            raise Conflict(
                f"{sweep.name} ({sweep.id}) has been extended meanwhile.", hint="Try again."
            )
        return context.presenter.sweeps.detail(store.sweeps.get(sweep.id))

    request = {"parameters": parameters, "points": points, "trials": trials}
    return Operation(f"extension of {sweep.id}", request, check=nothing_to_check, record=record)


def _added(spec: SweepSpec, known: Sequence[Mapping[str, Any]]) -> checks.Trials:
    """Return the trials of ``spec`` that are not among ``known``."""
    there = {point_key(point) for point in known}
    fresh = [point for point in spec.all_points() if point_key(point) not in there]
    return trials_at(spec, fresh, first=len(known) + 1)
