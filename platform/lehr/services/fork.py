"""Fork a run: start a new run from a checkpoint of another one, with a changed spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr import actor
from lehr import home as homes
from lehr.checkpoints.registry import CheckpointLocations
from lehr.control import forks
from lehr.errors import Conflict
from lehr.services import checks, code
from lehr.services.budget import check_launch
from lehr.services.once import Operation, Record
from lehr.specs import RunSpec
from lehr.store.records.checkpoints import THERE

if TYPE_CHECKING:
    from lehr.schemas.runs import RunDetail
    from lehr.services.context import Context
    from lehr.specs.overrides import Overrides
    from lehr.store.tables import RunRow


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
        checks.check_run(context, spec)
        check_launch(context, [spec])
        return record

    def record() -> str:
        # Checked again inside the transaction, where no deletion can interfere.
        forks.choose(run.name, store.checkpoints.of_run(run.id), point.step)
        made = store.runs.create(
            spec,
            actor=actor.current(),
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
    return Operation(
        f"fork of {run.id}",
        request,
        prepare,
        lambda run_id: context.presenter.runs.detail(store.runs.get(run_id)),
    )


def _refuse_missing(context: Context, run: RunRow, locations: CheckpointLocations) -> None:
    """Refuse missing files on one machine; with more machines the trainer checks."""
    if context.one_machine and not (locations.folder / "manifest.json").is_file():
        raise Conflict(
            f"the files of {run.name}'s checkpoint at step {locations.row.step:,} are gone: "
            f"there is no {locations.folder}.",
            hint=f"Its other checkpoints: lehr checkpoints ls {run.name}",
        )
