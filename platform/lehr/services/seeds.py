"""Repeat a run with other seeds: a sweep over ``train.seed``, so that its noise can be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr import actor
from lehr.analysis.compare import compared_metric
from lehr.errors import Conflict, InternalError, UserError
from lehr.names import PROGRAM_SEED, SEED, seed_path
from lehr.presenters.runs import CORE_METRICS
from lehr.services import checks
from lehr.services.archive import refuse_deleted
from lehr.services.budget import check_launch
from lehr.services.once import Operation, Record
from lehr.specs import RunSpec, SweepSpec
from lehr.specs.sweep import Values
from lehr.specs.sweep_expand import trials_at
from lehr.store.records.trial_rows import TrialRows

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store.tables import RunRow

MOST = 20
_SUFFIX = "-seeds"
_LONGEST = 95
"""Characters of the sweep's name; those of its runs have a number more."""


def repeat_run(
    context: Context, run: RunRow, *, n: int, provenance: dict[str, Any]
) -> Operation[SweepDetail]:
    """Return the operation that records ``n`` runs of the same spec with new seeds.

    Args:
        context: the objects that the services use.
        run: the run to repeat; it does not change.
        n: number of runs, 1 to 20.
        provenance: where the request comes from.

    Raises:
        UserError: ``n`` is out of its range.
        Conflict: the run was deleted or archived, or it is a fork.
    """
    if not 1 <= n <= MOST:
        raise UserError(f"n is {n}; it must be 1 to {MOST}.", hint=f"lehr seeds {run.name} --n 3")

    def draft() -> tuple[SweepSpec, TrialRows]:
        spec = _sweep(context, run, n)
        trials = trials_at(spec, list(spec.all_points()))
        checks.check_sweep(context, trials)
        check_launch(context, [trial for _, trial in trials])
        return spec, TrialRows(trials)

    def prepare() -> Record:
        _refuse(context, run)
        drafted, rows = draft()

        def record() -> str:
            _refuse(context, run)
            made, its = drafted, rows
            # Another request may have taken the seeds meanwhile.
            if _sweep(context, run, n) != drafted:
                made, its = draft()
            origin = {**provenance, "seeds_of": {"run": run.id, "name": run.name}}
            return context.store.sweeps.create(
                made, its, actor=actor.current(), provenance=origin, seeds_of=_first(context, run)
            ).id

        return record

    return Operation(
        f"seeds of {run.id}",
        {"n": n, "provenance": provenance},
        prepare,
        lambda sweep_id: context.presenter.sweeps.detail(context.store.sweeps.get(sweep_id)),
    )


def _refuse(context: Context, run: RunRow) -> None:
    refuse_deleted(context, run)
    if run.stored.seed is None:
        raise Conflict(
            f"{run.name} ({run.id}) has no argument that is a seed.",
            hint="Submit it with one, such as trainer.args.seed=0, and repeat that run.",
        )
    if context.store.runs.get(run.id).archived:
        raise Conflict(
            f"{run.name} ({run.id}) is archived.",
            hint=f"Show it again: lehr archive {run.name} --undo",
        )
    if run.forked_from is not None:
        raise Conflict(
            f"{run.name} ({run.id}) is a fork: it started from a checkpoint, whose seed cannot "
            "change.",
            hint=f"Repeat the run that it was forked from: lehr seeds {run.forked_from}",
        )


def _sweep(context: Context, run: RunRow, n: int) -> SweepSpec:
    spec = RunSpec.model_validate(run.spec)
    name = f"{run.name[: _LONGEST - len(_SUFFIX)]}{_SUFFIX}"
    fresh = _unused(_seeds_there(context, _first(context, run)), n)
    path = SEED if spec.trainer is None else seed_path(spec.trainer.args) or PROGRAM_SEED
    logged = [one.name for one in context.store.series.metrics(run.id)]
    metric = {"name": compared_metric([logged], CORE_METRICS)}
    if run.sweep_id is not None:
        metric = context.store.sweeps.get(run.sweep_id).spec["metric"]
    return SweepSpec.model_validate(
        {
            "name": name,
            "project": run.project,
            "tags": list(spec.tags),
            "notes": f"The spec of {run.name} ({run.id}) with other seeds.",
            "metric": metric,
            "parameters": {path: Values(values=fresh).model_dump()},
            "run": spec.model_dump(mode="json", exclude_unset=True),
        }
    )


def _first(context: Context, run: RunRow) -> str:
    """Return the id of the run that was repeated first: of a repetition, the one it repeats."""
    sweep = context.store.sweeps.get(run.sweep_id) if run.sweep_id else None
    return (sweep.seeds_of if sweep else None) or run.id


def _seeds_there(context: Context, run_id: str) -> set[int]:
    """Return the seeds of the run, of the trials beside it, and of its earlier repetitions."""
    run, sweeps = context.store.runs.get(run_id), context.store.sweeps
    beside = [sweep_id for _, sweep_id in sweeps.seeds_of([run_id])]
    beside += [run.sweep_id] if run.sweep_id else []
    runs = [run, *(one for sweep_id in beside for one in sweeps.runs(sweep_id))]
    return {seed for one in runs if (seed := one.stored.seed) is not None}


def _unused(there: set[int], n: int) -> list[int]:
    """Return the ``n`` smallest seeds that are not taken."""
    found = [seed for seed in range(len(there) + n) if seed not in there][:n]
    if len(found) < n:
        raise InternalError(f"no {n} seeds are left")
    return found
