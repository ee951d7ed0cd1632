"""Requests to runs and groups: cancel, pause, resume, retry, priority, notes, tags, a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lehr.app.services.archive import refuse_deleted
from lehr.app.services.budget import check_launch
from lehr.app.services.context import Context, Operation, Record
from lehr.app.wandb_mirror.controller import lack, request_for
from lehr.base.access import current_actor
from lehr.control.lifecycle import Desired, RunState
from lehr.control.retries import RETRY_RESET
from lehr.errors import Conflict, UserError
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import RunDetail
from lehr.schemas.sweeps import SweepDetail
from lehr.specs import RunSpec
from lehr.specs.run import WandbTracking
from lehr.store import Store
from lehr.store.changes import Change
from lehr.store.tables import RolloutRow, RunRow, SweepRow


def cancel_run(context: Context, run: RunRow) -> RunDetail:
    return _request(context, run, Desired.CANCEL)


def cancel_sweep(context: Context, sweep: SweepRow) -> SweepDetail:
    """Stop all of the sweep's runs that have not ended, and start no further trial."""
    store = context.store
    with store.transaction():
        if context.presenter.sweeps.trials_remaining(store.sweeps.get(sweep.id)):
            store.sweep_progress.stop(
                sweep.id, "cancelled", actor=current_actor(), waiting_too=False
            )
        store.sweep_progress.cancel(sweep.id, actor=current_actor())
    context.dispatcher.wake()
    return context.sweep(sweep.id)


def cancel_rollout(context: Context, rollout: RolloutRow) -> RolloutDetail:
    context.store.rollout_progress.end(rollout.id, "cancelled", "cancelled", actor=current_actor())
    context.dispatcher.wake()
    return context.rollout(rollout.id)


def pause_run(context: Context, run: RunRow) -> RunDetail:
    return _request(context, run, Desired.PAUSE)


def resume_run(context: Context, run: RunRow) -> RunDetail:
    """Queue a paused run again, to resume from its checkpoint.

    Raises:
        Conflict: it is not paused, and no pause is requested.
    """
    if run.state != RunState.PAUSED and run.desired != Desired.PAUSE:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; only a paused run can be resumed.",
            hint=_instead(context, run),
        )
    check_launch(context, [])  # Its plan counts already; the budget may be used up.
    return _request(context, run, Desired.RUN)


def _instead(context: Context, run: RunRow) -> str | None:
    """Return how a run that has ended goes on."""
    if run.state == RunState.FAILED:
        return "To queue a failed run again: retry."
    there = RunState(run.state).ended and context.store.checkpoints.of_run(run.id)
    return f"To go on from a checkpoint of it: lehr fork {run.id}" if there else None


def _request(context: Context, run: RunRow, desired: Desired) -> RunDetail:
    context.store.requests.set_desired(run.id, desired, actor=current_actor())
    context.dispatcher.wake()
    return context.run(run.id)


def retry_run(context: Context, run: RunRow) -> RunDetail:
    """Queue a failed run again, to resume from its last checkpoint.

    Raises:
        Conflict: it has not failed, or was deleted, or is a fork whose checkpoint was removed.
    """
    store = context.store
    if run.stored.external:
        raise Conflict(
            f"{run.name} ({run.id}) was not started by Lehr, which cannot start it again.",
            hint=f'Its own process can go on with it: lehr_log.init(id="{run.id}", resume=True)',
        )
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
            actor=current_actor(),
            set=RETRY_RESET,
        )
    if not moved:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; only a failed run can be retried.",
            hint=_instead(context, run),
        )
    context.dispatcher.wake()
    return context.run(run.id)


def _refuse_lost_base(store: Store, run: RunRow) -> None:
    """Raise Conflict for a fork without checkpoints of its own whose first one was removed.

    Nobody keeps the checkpoint of another run for a fork that has ended.
    """
    points = store.checkpoints
    if run.forked_from is None or points.of_run(run.id) or points.base_of(run):
        return
    if run.resume_from is None:
        if store.runs.get(run.forked_from).state in {RunState.FAILED, RunState.CANCELLED}:
            raise Conflict(
                f"{run.name} ({run.id}) cannot be retried: it starts where {run.forked_from} ends, "
                "which has not completed.",
                hint=f"Retry that first: lehr retry {run.forked_from}",
            )
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
        if sweep.stored.run.external:
            raise Conflict(f"Lehr did not start the runs of {sweep.name} ({sweep.id}).")
        runs = context.store.sweeps.runs(sweep.id)
        again = (run.spec for run in runs if run.state in {RunState.FAILED, RunState.CANCELLED})
        check_launch(context, map(RunSpec.model_validate, again))
        return record

    def record() -> str:
        context.store.sweep_progress.retry_trials(sweep.id, actor=current_actor())
        return sweep.id

    return Operation(f"retry of {sweep.id}", {}, prepare, context.sweep)


def set_priority(context: Context, run: RunRow, priority: int) -> RunDetail:
    """Replace the priority; the spec keeps the one that the run was submitted with.

    A run that holds GPUs keeps them; its priority counts when it is queued again.

    Raises:
        Conflict: it has ended.
    """
    if RunState(run.state).ended:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; the priority of an ended run has no effect.",
            hint="To run it again: retry, or a fork.",
        )
    changed = context.store.runs.set_priority(run.id, priority, actor=current_actor())
    context.dispatcher.wake()
    return context.presenter.runs.detail(changed)


def mirror_run(context: Context, run: RunRow, settings: WandbTracking) -> RunDetail:
    """Request a mirror in place of the spec's; with mode ``off``, mirroring ends.

    Raises:
        UserError: this server cannot make such a mirror.
        Conflict: the run was deleted.
    """
    missing = lack(settings.mode)
    if missing is not None:
        raise UserError(f"mode is {settings.mode}, but {missing[0]}.", hint=missing[1])
    refuse_deleted(context, run)
    store = context.store
    request_for(context.home, run.id, settings, at=store.clock())
    store.notify(Change("run", run.id))
    return context.run(run.id)


def note_run(context: Context, run: RunRow, note: str) -> RunDetail:
    """Replace the run's note; an empty one removes it."""
    return context.presenter.runs.detail(context.store.runs.set_note(run.id, note.strip()))


def note_sweep(context: Context, sweep: SweepRow, note: str) -> SweepDetail:
    return context.presenter.sweeps.detail(context.store.sweeps.set_note(sweep.id, note.strip()))


def note_rollout(context: Context, rollout: RolloutRow, note: str) -> RolloutDetail:
    changed = context.store.rollouts.set_note(rollout.id, note.strip())
    return context.presenter.rollouts.detail(changed)


MOST_TAGS = 30
LONGEST_TAG = 60


def checked_tag(tag: str) -> str:
    """Return the tag if it is valid.

    Raises:
        ValueError: a filter could not find it.
    """
    if not 0 < len(tag) <= LONGEST_TAG or "," in tag or any(letter.isspace() for letter in tag):
        raise ValueError(f"a tag has 1 to {LONGEST_TAG} characters, and neither spaces nor commas")
    return tag


def replace_tags(context: Context, run: RunRow, tags: Sequence[str]) -> RunDetail:
    """Replace the run's tags; a tag given twice counts once."""
    changed = context.store.runs.set_tags(run.id, list(dict.fromkeys(tags)))
    return context.presenter.runs.detail(changed)


def change_tags(
    context: Context, run: RunRow, *, add: Sequence[str], remove: Sequence[str]
) -> RunDetail:
    """Add tags and remove tags; the others stay, also when two requests change them at once.

    Raises:
        UserError: the run would have too many tags.
    """
    store = context.store
    with store.transaction():
        wanted = dict.fromkeys([*store.runs.get(run.id).tags, *add])
        tags = [tag for tag in wanted if tag not in remove]
        if len(tags) > MOST_TAGS:
            raise UserError(
                f"{run.name} would have {len(tags)} tags; a run has at most {MOST_TAGS}.",
                hint="Remove some in the same request.",
            )
        changed = store.runs.set_tags(run.id, tags)
    return context.presenter.runs.detail(changed)
