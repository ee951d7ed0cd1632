"""Extend a sweep: add trials, also to a finished one. Existing trials do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lehr import actor
from lehr.errors import InternalError
from lehr.services import budget, checks
from lehr.services.once import Operation, Record
from lehr.specs import SweepSpec
from lehr.specs.search import point_key
from lehr.specs.sweep_expand import trials_at, value_trials
from lehr.specs.sweep_extend import extended
from lehr.store.records.trial_rows import TrialRows

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store import Store
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
    if trials is not None:  # Its search adds them later, for the one who launched it.
        budget.refuse_others(context, sweep)

    def draft() -> _Draft:
        before = store.sweeps.get(sweep.id).spec
        known = [trial.parameters for trial in store.sweeps.trials(sweep.id)]
        spec = extended(
            SweepSpec.model_validate(before), parameters=parameters, points=points, trials=trials
        )
        added = _added(spec, known)
        checks.check_sweep(context, [*added, *value_trials(spec)])
        specs = [trial for _, trial in added]
        budget.check_launch(context, specs, share=max((trials or 0) / max(len(specs), 1), 1.0))
        return _Draft(before, len(known), spec, TrialRows(added))

    def prepare() -> Record:
        drafted = draft()

        def record() -> str:
            # If the sweep changed meanwhile, it is drafted again, now where nothing can change it.
            if not drafted.add(store, sweep.id) and not draft().add(store, sweep.id):
                raise InternalError(f"{sweep.name} ({sweep.id}) could not be extended")
            return sweep.id

        return record

    return Operation(
        f"extension of {sweep.id}",
        {"parameters": parameters, "points": points, "trials": trials},
        prepare,
        lambda sweep_id: context.presenter.sweeps.detail(store.sweeps.get(sweep_id)),
    )


@dataclass(frozen=True)
class _Draft:
    """An extension, made for a sweep as it was."""

    before: dict[str, Any]
    """The sweep's spec."""
    known: int
    """The number of its trials."""
    spec: SweepSpec
    rows: TrialRows

    def add(self, store: Store, sweep_id: str) -> bool:
        """Record it; return False if the sweep has changed."""
        if store.sweeps.get(sweep_id).spec != self.before:
            return False
        return store.sweep_progress.add_trials(
            sweep_id, self.rows, known=self.known, actor=actor.current(), spec=self.spec
        )


def _added(spec: SweepSpec, known: Sequence[Mapping[str, Any]]) -> checks.Trials:
    """Return the trials of ``spec`` that are not among ``known``."""
    there = {point_key(point) for point in known}
    fresh = [point for point in spec.all_points() if point_key(point) not in there]
    return trials_at(spec, fresh, first=len(known) + 1)
