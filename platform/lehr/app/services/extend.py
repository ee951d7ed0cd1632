"""More trials: of a sweep, of one run with other seeds, or of runs that Lehr did not start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lehr.analysis.compare import compared_metric, flatten
from lehr.app.presenters.runs import CORE_METRICS
from lehr.app.services import budget, checks
from lehr.app.services.archive import refuse_deleted
from lehr.app.services.budget import check_launch
from lehr.app.services.context import Context, Operation, Record
from lehr.base.access import current_actor
from lehr.base.names import ARGUMENTS, PROGRAM_SEED, SEED, is_neutral_argument, seed_path
from lehr.errors import Conflict, InternalError, UserError, did_you_mean
from lehr.schemas.runs import ExternalGroup, Opened
from lehr.schemas.sweeps import SweepDetail
from lehr.specs import RunSpec, SweepSpec
from lehr.specs.load import load_spec
from lehr.specs.run import CLAIM
from lehr.specs.search import point_key
from lehr.specs.sweep import Metric, Values
from lehr.specs.sweep_expand import trials_at, value_trials
from lehr.store.records.trial_rows import TrialRows
from lehr.store.tables import RunRow, SweepRow


def extend_sweep(
    context: Context,
    sweep: SweepRow,
    *,
    parameters: Mapping[str, Sequence[Any]] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    trials: int | None = None,
    gpu_hours: float | None = None,
) -> Operation[SweepDetail]:
    """Add trials to a sweep: for a grid further values, for a list points, for a search a number
    of trials, for a campaign GPU-hours of its budget.
    """
    store = context.store
    # A search adds them later, for the one who launched it.
    if trials is not None or gpu_hours is not None:
        budget.refuse_others(context, sweep)

    def draft() -> tuple[dict[str, Any], int, SweepSpec, TrialRows]:
        """Return the sweep's spec and number of trials as they are, its new spec, new trials."""
        before = store.sweeps.get(sweep.id).spec
        known = [trial.parameters for trial in store.sweeps.trials(sweep.id)]
        sweep_spec = SweepSpec.model_validate(before)
        spec = extended(
            sweep_spec, parameters=parameters, points=points, trials=trials, gpu_hours=gpu_hours
        )
        there = {point_key(point) for point in known}
        fresh = [point for point in spec.all_points() if point_key(point) not in there]
        added = trials_at(spec, fresh, first=len(known) + 1)
        checks.check_specs(context, [trial for _, trial in (*added, *value_trials(spec))])
        specs = [trial for _, trial in added]
        more = spec.campaign and spec.campaign.model_copy(update={"gpu_hours": gpu_hours})
        share = max((trials or 0) / max(len(specs), 1), 1.0)
        budget.check_launch(context, specs, share=share, campaign=more)
        return before, len(known), spec, TrialRows(added)

    def prepare() -> Record:
        drafted = draft()

        def record() -> str:
            # If the sweep changed meanwhile, it is drafted again, now where nothing can change it.
            for again in (False, True):
                before, known, spec, rows = draft() if again else drafted
                if store.sweeps.get(sweep.id).spec == before and store.sweep_progress.add_trials(
                    sweep.id, rows, known=known, actor=current_actor(), spec=spec
                ):
                    return sweep.id
            raise InternalError(f"{sweep.name} ({sweep.id}) could not be extended")

        return record

    return Operation(
        f"extension of {sweep.id}",
        {"parameters": parameters, "points": points, "trials": trials, "gpu_hours": gpu_hours},
        prepare,
        context.sweep,
    )


def gather_external(context: Context, group: ExternalGroup) -> Opened:
    """Make runs that Lehr did not start a sweep, or add them to it, unless they are in another."""
    store = context.store
    with store.transaction():
        trials = store.sweeps.trials(group.id)
        ids = {*group.run_ids, *(trial.run_id for trial in trials)}
        runs = [run for run in store.runs.by_ids(ids) if run.stored.external]
        runs = [run for run in runs if run.sweep_id in {None, group.id}]
        made = Opened(id=group.id, name=group.name, runs=len(runs), new=not trials)
        if not runs:
            return made
        runs.sort(key=lambda run: (run.created_at, run.name))
        configs = [flatten(run.stored.program["args"], ARGUMENTS[:-1]) for run in runs]
        varied = [
            path
            for path in dict.fromkeys(path for config in configs for path in config)
            if len({point_key({path: config.get(path)}) for config in configs}) > 1
            and not is_neutral_argument(path)
        ]
        logged = [[one.name for one in store.series.metrics(run.id)] for run in runs[:100]]
        metric = group.metric or Metric(name=compared_metric(logged, CORE_METRICS))
        own = {"name": group.name, "project": runs[0].project, "method": "list", "points": [{}]}
        spec = SweepSpec.model_validate(own | {"metric": metric, "run": runs[0].spec})
        points = {
            run.id: {path: config.get(path) for path in varied} or {"name": run.name}
            for run, config in zip(runs, configs, strict=True)
        }
        store.sweeps.gather(group.id, spec, points, actor=current_actor())
    return made


def extended(
    spec: SweepSpec,
    *,
    parameters: Mapping[str, Sequence[Any]] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    trials: int | None = None,
    gpu_hours: float | None = None,
) -> SweepSpec:
    """Return the spec with these values, points, trials or GPU-hours added.

    Seeds of a grid or a list are added by their path among the ``parameters``.

    Raises:
        UserError: the sweep's method cannot use them, or there are none.
        SpecError: a value does not fit.
    """
    seeds: list[Any] = []
    if parameters is not None and spec.seeds is not None and spec.method in {"grid", "list"}:
        seeds = list(parameters.get(spec.seed_path, ()))
        parameters = {path: them for path, them in parameters.items() if path != spec.seed_path}
        if seeds and not parameters:
            parameters = None
    given: dict[str, Any] = {"parameters": parameters, "points": points, "trials": trials}
    given["gpu_hours"] = gpu_hours
    fields = {"grid": "parameters", "list": "points", "campaign": "gpu_hours"}
    field = fields.get(spec.method, "trials")
    for name, value in given.items():
        if value is not None and name != field:
            raise UserError(
                f"{name} cannot be added to {spec.name}: its method is {spec.method}.",
                hint=f"Give {field}.",
            )
    if not given[field] and not seeds:
        raise UserError(f"nothing to add to {spec.name}.", hint=f"Give {field}.")
    data = spec.model_dump(mode="json", exclude_unset=True)
    if parameters is not None:
        for path, values in parameters.items():
            if path not in spec.parameters:
                raise UserError(
                    f"{path} is not a parameter of {spec.name}.",
                    hint=did_you_mean(path, spec.parameters)
                    or f"Its parameters: {', '.join(spec.paths)}.",
                )
            data["parameters"][path]["values"] += list(values)
    if seeds:
        data["seeds"] += seeds
    if points is not None:
        data["points"] += [dict(point) for point in points]
    if trials is not None:
        if trials < 1:
            raise UserError(f"trials is {trials}; it must be at least 1.")
        data["trials"] = (spec.trials or 0) + trials
    if gpu_hours is not None:
        data["campaign"]["gpu_hours"] += gpu_hours
    made = load_spec(data)
    assert isinstance(made, SweepSpec)
    return made


MOST = 20
_SUFFIX = "-seeds"
_LONGEST = 95  # Characters of the sweep's name; those of its runs have a number more.


def repeat_run(
    context: Context, run: RunRow, *, n: int | list[int], provenance: dict[str, Any]
) -> Operation[SweepDetail]:
    """Return the operation that records ``n`` runs of the same spec with new seeds, or with these.

    Raises:
        UserError: ``n`` is out of its range.
        Conflict: the run was deleted or archived, or it is a fork.
    """
    if isinstance(n, int) and not 1 <= n <= MOST:
        raise UserError(f"n is {n}; it must be 1 to {MOST}.", hint=f"lehr seeds {run.name} --n 3")

    def draft() -> tuple[SweepSpec, TrialRows]:
        spec = _sweep(context, run, n)
        trials = trials_at(spec, list(spec.all_points()))
        specs = [trial for _, trial in trials]
        checks.check_specs(context, specs)
        check_launch(context, specs)
        return spec, TrialRows(trials)

    def prepare() -> Record:
        refuse_repeating(context, run)
        drafted, rows = draft()

        def record() -> str:
            refuse_repeating(context, run)
            made, its = drafted, rows
            # Another request may have taken the seeds meanwhile.
            if _sweep(context, run, n) != drafted:
                made, its = draft()
            origin = {**provenance, "seeds_of": {"run": run.id, "name": run.name}}
            return context.store.sweeps.create(
                made, its, actor=current_actor(), provenance=origin, seeds_of=_first(context, run)
            ).id

        return record

    return Operation(
        f"seeds of {run.id}", {"n": n, "provenance": provenance}, prepare, context.sweep
    )


def refuse_repeating(context: Context, run: RunRow) -> None:
    """Raise Conflict if the run cannot be repeated with another seed."""
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


def _sweep(context: Context, run: RunRow, n: int | list[int]) -> SweepSpec:
    spec = RunSpec.model_validate(run.spec)
    name = f"{run.name[: _LONGEST - len(_SUFFIX)]}{_SUFFIX}"
    fresh = n if isinstance(n, list) else _unused(_seeds_there(context, _first(context, run)), n)
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
            "run": spec.model_dump(mode="json", exclude_unset=True, exclude=CLAIM),
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
    return [seed for seed in range(len(there) + n) if seed not in there][:n]
