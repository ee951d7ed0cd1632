"""Notes on runs, sweeps and rollouts: text that may change at any time, the spec may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store.tables import RolloutRow, RunRow, SweepRow


def note_run(context: Context, run: RunRow, note: str) -> RunDetail:
    """Replace the run's note; an empty one removes it."""
    return context.presenter.runs.detail(context.store.runs.set_note(run.id, note.strip()))


def note_sweep(context: Context, sweep: SweepRow, note: str) -> SweepDetail:
    """Replace the sweep's note; its runs keep theirs."""
    return context.presenter.sweeps.detail(context.store.sweeps.set_note(sweep.id, note.strip()))


def note_rollout(context: Context, rollout: RolloutRow, note: str) -> RolloutDetail:
    """Replace the rollout's note; its runs keep theirs."""
    changed = context.store.rollouts.set_note(rollout.id, note.strip())
    return context.presenter.rollouts.detail(changed)
