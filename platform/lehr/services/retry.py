"""Retry a failed run, or the failed trials of a sweep, with fresh retry budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lehr import actor
from lehr.control.lifecycle import RunState
from lehr.control.retries import RETRY_RESET
from lehr.errors import Conflict
from lehr.services.budget import check_launch
from lehr.services.delete import refuse_deleted
from lehr.services.once import Operation, Record
from lehr.specs import RunSpec

if TYPE_CHECKING:
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store import Store
    from lehr.store.tables import RunRow, SweepRow


def retry_run(context: Context, run: RunRow) -> RunDetail:
    """Queue a failed run again, to resume from its last checkpoint.

    Raises:
        Conflict: it has not failed, or was deleted, or is a fork whose checkpoint was removed.
    """
    store = context.store
    check_launch(context, [RunSpec.model_validate(run.spec)])
    with store.transaction():
        refuse_deleted(context, run)
        _refuse_lost_base(store, run)
        moved = store.transitions.apply(
            run.id,
            old=RunState.FAILED,
            new=RunState.QUEUED,
            attempt=run.attempt,
            cause="retry",
            message="retried by the user",
            actor=actor.current(),
            set=RETRY_RESET,
        )
    if not moved:
        raise Conflict(f"{run.name} ({run.id}) is {run.state}; only a failed run can be retried.")
    context.dispatcher.wake()
    return context.presenter.runs.detail(store.runs.get(run.id))


def _refuse_lost_base(store: Store, run: RunRow) -> None:
    """Raise Conflict for a fork without checkpoints of its own whose first one was removed.

    Nobody keeps the checkpoint of another run for a fork that has ended.
    """
    points = store.checkpoints
    if run.forked_from is None or points.of_run(run.id) or points.base_of(run):
        return
    base = "/".join(Path(run.resume_from or "").parts[-3:])
    raise Conflict(
        f"{run.name} ({run.id}) cannot be retried: it saved no checkpoint, and the one that it "
        f"starts from, {base} of {run.forked_from}, was removed.",
        hint=f"Fork {run.forked_from} again from another step: "
        f"lehr checkpoints ls {run.forked_from}",
    )


def retry_sweep(context: Context, sweep: SweepRow) -> Operation[SweepDetail]:
    """Retry exactly the failed trials, and those that never ran because the sweep was stopped.

    A failed trial whose run was deleted gets a new run.
    """

    def prepare() -> Record:
        runs = context.store.sweeps.runs(sweep.id)
        again = (run.spec for run in runs if run.state in {RunState.FAILED, RunState.CANCELLED})
        check_launch(context, map(RunSpec.model_validate, again))
        return record

    def record() -> str:
        context.store.sweep_progress.retry_trials(sweep.id, actor=actor.current())
        return sweep.id

    return Operation(
        f"retry of {sweep.id}",
        {},
        prepare,
        lambda sweep_id: context.presenter.sweeps.detail(context.store.sweeps.get(sweep_id)),
    )
