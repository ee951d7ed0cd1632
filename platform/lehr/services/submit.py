"""Submit a run, launch a sweep or a rollout. Everything is recorded, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lehr import actor
from lehr.errors import UserError
from lehr.services import checks, code
from lehr.services.once import Operation, Record
from lehr.specs import RolloutSpec, RunSpec, SweepSpec, load_spec, stages
from lehr.specs.load import Spec, load_with_trials
from lehr.specs.sweep_expand import value_trials
from lehr.store.records.trial_rows import TrialRows

if TYPE_CHECKING:
    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.specs.overrides import Overrides

Plain = dict[str, Any]
AnySpec = TypeVar("AnySpec", RunSpec, SweepSpec, RolloutSpec)


def submit_run(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[RunDetail]:
    """Return the operation that records a run and queues it.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(context, spec, overrides, RunSpec)

    def prepare() -> Record:
        checks.check_run(context, loaded)
        return lambda: (
            context.store.runs.create(loaded, actor=actor.current(), provenance=provenance).id
        )

    return Operation(
        "runs",
        _request(spec, overrides, provenance),
        prepare,
        lambda run_id: context.presenter.runs.detail(context.store.runs.get(run_id)),
    )


def launch_sweep(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[SweepDetail]:
    """Return the operation that records a sweep with all its runs and queues them.

    Raises:
        SpecError: with every problem of the spec.
    """
    checks.refuse_relative_paths(overrides)
    read = load_with_trials(spec, overrides)
    loaded = _pinned(context, read.spec, SweepSpec)

    def prepare() -> Record:
        trials = code.pin_trials(loaded, read.trials)
        checks.check_sweep(context, [*trials, *value_trials(loaded)])
        rows = TrialRows(trials)
        sweeps = context.store.sweeps
        return lambda: sweeps.create(loaded, rows, actor=actor.current(), provenance=provenance).id

    return Operation(
        "sweeps",
        _request(spec, overrides, provenance),
        prepare,
        lambda sweep_id: context.presenter.sweeps.detail(context.store.sweeps.get(sweep_id)),
    )


def launch_rollout(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[RolloutDetail]:
    """Return the operation that records a rollout; the dispatcher starts its first stage.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(context, spec, overrides, RolloutSpec)
    planned = stages(loaded)

    def prepare() -> Record:
        checks.check_rollout(context, planned)
        names = [stage.name for stage in planned]
        rollouts = context.store.rollouts
        return lambda: rollouts.create(loaded, names, provenance=provenance).id

    return Operation(
        "rollouts",
        _request(spec, overrides, provenance),
        prepare,
        lambda rollout_id: context.presenter.rollouts.detail(
            context.store.rollouts.get(rollout_id)
        ),
    )


def _read(context: Context, spec: Plain, overrides: Overrides, kind: type[AnySpec]) -> AnySpec:
    checks.refuse_relative_paths(overrides)
    return _pinned(context, load_spec(spec, overrides), kind)


def _pinned(context: Context, spec: Spec, kind: type[AnySpec]) -> AnySpec:
    loaded = code.pin(context, spec)
    if not isinstance(loaded, kind):
        raise UserError(
            f"this is the spec of a {loaded.kind}.", hint=f"Send it to /api/v1/{loaded.kind}s."
        )
    return loaded


def _request(spec: Plain, overrides: Overrides, provenance: Plain) -> Plain:
    return {"spec": spec, "overrides": overrides, "provenance": provenance}
