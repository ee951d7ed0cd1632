"""Submit or fork a run, launch a sweep or a rollout. Everything is recorded, or nothing.

``check`` refuses what these refuse, by their own ``prepare``, and records nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lehr.app.services import checks, code
from lehr.app.services.budget import check_launch
from lehr.app.services.campaigns import first_trial
from lehr.app.services.context import Context, Operation, Record, V
from lehr.app.services.judge import check_claims
from lehr.base import home as homes
from lehr.base import procfs
from lehr.base.access import current_actor
from lehr.checkpoints.registry import CheckpointLocations
from lehr.cluster.launcher import record_of
from lehr.control import forks
from lehr.errors import Conflict, StoreUnavailable, UserError
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import (
    ExternalBegin,
    ExternalBegun,
    RunDetail,
    SubmissionCheck,
    SubmissionKind,
)
from lehr.schemas.sweeps import SweepDetail
from lehr.specs import RolloutSpec, RunSpec, SweepSpec, load_spec, stages
from lehr.specs.course import trunk_of
from lehr.specs.load import Spec, load_with_trials
from lehr.specs.overrides import Overrides
from lehr.specs.sweep_expand import value_trials
from lehr.store.records.checkpoints import THERE
from lehr.store.records.trial_rows import TrialRows
from lehr.store.tables import RunRow
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote

Plain = dict[str, Any]
AnySpec = TypeVar("AnySpec", RunSpec, SweepSpec, RolloutSpec)


@dataclass(frozen=True)
class SpecOperation(Operation[V]):
    spec: Spec


def check(
    context: Context,
    kind: SubmissionKind,
    spec: Plain,
    overrides: Overrides,
    *,
    code_sent: bool = True,
) -> SubmissionCheck:
    """Check a submission as if it were recorded, and record nothing.

    ``code_sent``: the server has the capsule that the spec names. Without it, the capsule is sent
    only with the submission, and its files are not checked.

    Raises:
        UserError: the submission would be refused, with this error.
    """
    launch: Any = {"run": submit_run, "sweep": launch_sweep, "rollout": launch_rollout}[kind]
    made: SpecOperation[Any] = launch(context, spec, overrides, {}, code_sent=code_sent)
    loaded = made.spec
    run = loaded if isinstance(loaded, RunSpec) else loaded.run
    if not code_sent:
        code.refuse_unsent(context, run)
    made.prepare()
    # A rollout shows no warnings when it is launched.
    plain = run.model_dump(mode="json", include={"resources", "checkpoints"})
    warnings = [] if kind == "rollout" else context.presenter.runs.node_warnings(plain)
    return SubmissionCheck(kind=kind, name=loaded.name, warnings=warnings)


def submit_run(
    context: Context,
    spec: Plain,
    overrides: Overrides,
    provenance: Plain,
    *,
    code_sent: bool = True,
) -> SpecOperation[RunDetail]:
    """Return the operation that records a run and queues it.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(context, spec, overrides, RunSpec)

    def prepare() -> Record:
        checks.check_specs(context, [loaded], prefix="", code_sent=code_sent)
        check_claims(context, [loaded], code_sent=code_sent)
        check_launch(context, [loaded])
        return lambda: (
            context.store.runs.create(loaded, actor=current_actor(), provenance=provenance).id
        )

    request = _request(spec, overrides, provenance)
    return SpecOperation("runs", request, prepare, context.run, loaded)


def begin_external(context: Context, begun: ExternalBegin) -> ExternalBegun:
    """Record a run that a process reports which Lehr did not start, or its next attempt.

    Raises:
        UserError: the spec is wrong, or is not that of such a run.
        Conflict: the run to resume was started by Lehr, or was deleted.
        StoreUnavailable: what `lehr db rebuild` needs could not be written. Try again.
    """
    spec = load_spec(begun.spec)
    if not (isinstance(spec, RunSpec) and spec.trainer and spec.trainer.external):
        raise UserError("the spec is not that of a run with trainer.external.")
    attempt = context.store.transitions.begin_external(
        spec,
        run_id=begun.id,
        resume=begun.resume,
        token_sha256=begun.token_sha256,
        at=begun.started_at,
        actor=current_actor(),
        provenance=begun.provenance,
    )
    run_id, number = attempt.run_id, attempt.number
    record = record_of(context.store.runs.get(run_id), attempt)
    record["token_sha256"] = begun.token_sha256
    note = LaunchNote(run_id=run_id, attempt=number, record=record).model_dump_json().encode()
    folder = layout.attempt_dir(homes.runs_dir(context.home) / run_id, number)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        procfs.write_atomically(str(folder / layout.LAUNCH), note, durable=True)
    except OSError as error:
        raise StoreUnavailable(f"{folder} could not be written: {error.strerror}.") from error
    return ExternalBegun(run_id=attempt.run_id, attempt_id=attempt.id)


def launch_sweep(
    context: Context,
    spec: Plain,
    overrides: Overrides,
    provenance: Plain,
    *,
    code_sent: bool = True,
) -> SpecOperation[SweepDetail]:
    """Return the operation that records a sweep with all its runs and queues them.

    Raises:
        SpecError: with every problem of the spec.
    """
    checks.refuse_relative_paths(overrides)
    read = load_with_trials(spec, overrides)
    loaded = _pinned(context, read.spec, SweepSpec)

    def prepare() -> Record:
        trials = code.pin_trials(loaded, read.trials)
        if loaded.campaign is not None:
            trials = first_trial(context, loaded)
        every = [spec for _, spec in (*trials, *value_trials(loaded))]
        checks.check_specs(context, every, code_sent=code_sent, metric=loaded.metric.name)
        specs = [spec for _, spec in trials]
        check_claims(context, specs, code_sent=code_sent)
        trunk = trunk_of(loaded)
        share = loaded.trial_count / max(len(specs), 1)
        check_launch(context, specs, share=share, trunk=trunk, campaign=loaded.campaign)
        rows = TrialRows(trials)
        create = partial(context.store.sweeps.create, loaded, rows, trunk=trunk)
        return lambda: create(actor=current_actor(), provenance=provenance).id

    request = _request(spec, overrides, provenance)
    return SpecOperation("sweeps", request, prepare, context.sweep, loaded)


def launch_rollout(
    context: Context,
    spec: Plain,
    overrides: Overrides,
    provenance: Plain,
    *,
    code_sent: bool = True,
) -> SpecOperation[RolloutDetail]:
    """Return the operation that records a rollout; the dispatcher starts its stages.

    Raises:
        SpecError: with every problem of the spec.
    """
    loaded = _read(context, spec, overrides, RolloutSpec)
    planned = stages(loaded)

    def prepare() -> Record:
        every = [spec for stage in planned for spec in stage.runs.values()]
        checks.check_specs(context, every, code_sent=code_sent)
        check_launch(context, [stage.train for stage in planned])
        names = [stage.name for stage in planned]
        rollouts = context.store.rollouts
        return lambda: (
            rollouts.create(loaded, names, actor=current_actor(), provenance=provenance).id
        )

    request = _request(spec, overrides, provenance)
    return SpecOperation("rollouts", request, prepare, context.rollout, loaded)


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


def fork_run(
    context: Context,
    run: RunRow,
    changes: Overrides,
    *,
    step: int | None,
    optimizer_state: forks.OptimizerState = "keep",
    provenance: dict[str, Any],
) -> Operation[RunDetail]:
    """Record a run that starts from a checkpoint of ``run``, and queue it.

    Optimizer (unless its state is to be fresh), data order and step count continue from the
    checkpoint; ``run`` does not change.

    Args:
        context: the objects that the services use.
        run: the run to fork.
        changes: values by dotted path, laid over its spec.
        step: the checkpoint's step; None: the newest checkpoint.
        optimizer_state: fresh starts the optimizer without the checkpoint's state.
        provenance: where the request comes from.

    Raises:
        NotFound: there is no such checkpoint.
        SpecError: with every problem of the changed spec.
        Conflict: the checkpoint is not in the folder of this run's checkpoints.
    """
    store = context.store
    point = forks.choose(run.name, store.checkpoints.of_run(run.id), step)
    checks.refuse_relative_paths(changes)
    spec = forks.fork_spec(run.spec, changes, step=point.step, optimizer_state=optimizer_state)
    pinned = code.pin(context, spec)
    assert isinstance(pinned, RunSpec)
    spec = pinned
    locations = CheckpointLocations(homes.runs_dir(context.home), run, point)
    locations.require_own()
    origin = {
        "run": run.id,
        "name": run.name,
        "attempt": point.attempt,
        "step": point.step,
        "digest": point.digest,
        "changes": changes,
    }
    warning = forks.reheating(RunSpec.model_validate(run.spec), spec, point.step)
    if warning is not None:
        origin["warning"] = warning

    def prepare() -> Record:
        if point.copy_state != THERE:
            _refuse_missing(context, run, locations)
        checks.check_specs(context, [spec], prefix="")
        check_launch(context, [spec])
        return record

    def record() -> str:
        # Checked again inside the transaction, where no deletion can interfere.
        forks.choose(run.name, store.checkpoints.of_run(run.id), point.step)
        made = store.runs.create(
            spec,
            actor=current_actor(),
            provenance={**provenance, "fork": origin},
            resume_from=str(locations.folder),
            forked_from=run.id,
        )
        return made.id

    request = {
        "step": step,
        "changes": changes,
        "optimizer_state": optimizer_state,
        "provenance": provenance,
    }
    return Operation(f"fork of {run.id}", request, prepare, context.run)


def _refuse_missing(context: Context, run: RunRow, locations: CheckpointLocations) -> None:
    """Refuse missing files on one machine; with more machines the trainer checks."""
    if context.one_machine and not (locations.folder / "manifest.json").is_file():
        raise Conflict(
            f"the files of {run.name}'s checkpoint at step {locations.row.step:,} are gone: "
            f"there is no {locations.folder}.",
            hint=f"Its other checkpoints: lehr checkpoints ls {run.name}",
        )
