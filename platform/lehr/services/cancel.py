"""Cancel a run, a sweep or a rollout: stop it without saving. Repeating it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr import actor
from lehr.control.lifecycle import Desired

if TYPE_CHECKING:
    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store.tables import RolloutRow, RunRow, SweepRow


def cancel_run(context: Context, run: RunRow) -> RunDetail:
    context.store.requests.set_desired(run.id, Desired.CANCEL, actor=actor.current())
    context.dispatcher.wake()
    return context.presenter.runs.detail(context.store.runs.get(run.id))


def cancel_sweep(context: Context, sweep: SweepRow) -> SweepDetail:
    """Stop all of the sweep's runs that have not ended, and start no further trial."""
    store = context.store
    with store.transaction():
        if context.presenter.sweeps.trials_remaining(store.sweeps.get(sweep.id)):
            store.sweep_progress.stop(
                sweep.id, "cancelled", actor=actor.current(), waiting_too=False
            )
        store.sweep_progress.cancel(sweep.id, actor=actor.current())
    context.dispatcher.wake()
    return context.presenter.sweeps.detail(store.sweeps.get(sweep.id))


def cancel_rollout(context: Context, rollout: RolloutRow) -> RolloutDetail:
    """Stop the rollout's runs, and start no further ones."""
    context.store.rollout_progress.end(rollout.id, "cancelled", "cancelled", actor=actor.current())
    context.dispatcher.wake()
    return context.presenter.rollouts.detail(context.store.rollouts.get(rollout.id))
