"""Submit a run, launch a sweep or a rollout. Everything is recorded, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr.errors import UserError
from lehr.services import checks
from lehr.services.once import Operation
from lehr.specs import RolloutSpec, RunSpec, Spec, SweepSpec, expand, load_spec, stages

if TYPE_CHECKING:
    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.specs.overrides import Overrides

Plain = dict[str, Any]


def submit_run(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[RunDetail]:
    """Return the operation that records a run and queues it.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(spec, overrides)
    if not isinstance(loaded, RunSpec):
        raise _of_another_kind(loaded)

    def record() -> RunDetail:
        run = context.store.runs.create(loaded, actor="user", provenance=provenance)
        return context.presenter.runs.detail(run)

    return Operation(
        "runs",
        _request(spec, overrides, provenance),
        check=lambda: checks.check_run(context, loaded),
        record=record,
    )


def launch_sweep(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[SweepDetail]:
    """Return the operation that records a sweep with all its runs and queues them.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(spec, overrides)
    if not isinstance(loaded, SweepSpec):
        raise _of_another_kind(loaded)
    trials = expand(loaded)

    def record() -> SweepDetail:
        sweep = context.store.sweeps.create(loaded, trials, actor="user", provenance=provenance)
        return context.presenter.sweeps.detail(sweep)

    return Operation(
        "sweeps",
        _request(spec, overrides, provenance),
        check=lambda: checks.check_sweep(context, trials),
        record=record,
    )


def launch_rollout(
    context: Context, spec: Plain, overrides: Overrides, provenance: Plain
) -> Operation[RolloutDetail]:
    """Return the operation that records a rollout; the dispatcher starts its first stage.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(spec, overrides)
    if not isinstance(loaded, RolloutSpec):
        raise _of_another_kind(loaded)
    planned = stages(loaded)

    def record() -> RolloutDetail:
        rollout = context.store.rollouts.create(
            loaded, [stage.name for stage in planned], provenance=provenance
        )
        return context.presenter.rollouts.detail(rollout)

    return Operation(
        "rollouts",
        _request(spec, overrides, provenance),
        check=lambda: checks.check_rollout(context, planned),
        record=record,
    )


def _read(spec: Plain, overrides: Overrides) -> Spec:
    checks.refuse_relative_paths(overrides)
    return load_spec(spec, overrides)


def _of_another_kind(spec: Spec) -> UserError:
    return UserError(
        f"this is the spec of a {spec.kind}.", hint=f"Send it to /api/v1/{spec.kind}s."
    )


def _request(spec: Plain, overrides: Overrides, provenance: Plain) -> Plain:
    return {"spec": spec, "overrides": overrides, "provenance": provenance}
