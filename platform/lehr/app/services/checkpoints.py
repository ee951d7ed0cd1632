"""Checkpoints of a run: order one, verify, list files, read, delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lehr.app.services.context import Context
from lehr.base import home as homes
from lehr.base.access import current_actor
from lehr.base.names import task_of
from lehr.base.stopped import Stopped, never
from lehr.checkpoints.registry import CheckpointLocations, Source, find
from lehr.control.lifecycle import RunState
from lehr.control.saved_points import copies_at, copies_to_remove
from lehr.errors import Conflict, NotFound, UserError, did_you_mean
from lehr.schemas.checkpoints import CheckpointDeletion, CheckpointFiles, CheckpointVerdict
from lehr.schemas.runs import RunDetail
from lehr.store import Store
from lehr.store.ids import attempt_id
from lehr.store.records.checkpoints import CopyReport
from lehr.store.records.run_rows import shown_run
from lehr.store.scores import add_score
from lehr.store.tables import CheckpointRow, RunRow
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Evaluation


def order_checkpoint(context: Context, run: RunRow) -> RunDetail:
    """Have the run save a checkpoint at its next step."""
    context.store.requests.order_checkpoint(run.id, actor=current_actor())
    context.dispatcher.wake()
    return context.run(run.id)


def verify(
    context: Context, run: RunRow, step: int, attempt: int | None, stopped: Stopped = never
) -> CheckpointVerdict:
    """Read the checkpoint to its end in every place, and compare it with its manifest.

    ``stopped`` is asked between pieces: is the verdict still wanted?
    """
    return _locate(context, run, step, attempt).verify(stopped)


def files(context: Context, run: RunRow, step: int, attempt: int | None) -> CheckpointFiles:
    return _locate(context, run, step, attempt).files()


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint, open for reading; close it also if it was not read."""

    name: str
    size: int
    sha256: str
    source: Source

    def read(self, first: int, count: int) -> Iterator[bytes]:
        """Yield its bytes from ``first`` on, in pieces; close it at the end."""
        try:
            yield from self.source.read(self.name, first, count)
        finally:
            self.source.close()

    def close(self) -> None:
        self.source.close()


def open_file(
    context: Context, run: RunRow, step: int, attempt: int | None, name: str
) -> CheckpointFile:
    """Open a file of the checkpoint, from the run directory or from its copy.

    Raises:
        NotFound: the checkpoint has no such file.
        Conflict: it cannot be read from this machine.
    """
    source, known = _locate(context, run, step, attempt).readable(hold={name})
    manifest = known.manifest
    if name == layout.MANIFEST:
        size = sum(map(len, source.read(name)))
        return CheckpointFile(name, size, known.digest, source)
    entry = manifest.files.get(name)
    if entry is None:
        source.close()
        raise NotFound(
            f"the checkpoint at step {step:,} has no file {name!r}.",
            hint=did_you_mean(name, [*manifest.files, layout.MANIFEST])
            or f"It has: {', '.join(manifest.files)}.",
        )
    return CheckpointFile(name, entry.size, entry.sha256, source)


def estimate_checkpoint_deletion(
    context: Context, run: RunRow, step: int, attempt: int | None
) -> CheckpointDeletion:
    """Return what deleting the checkpoint would free; deletes nothing."""
    locations = _locate(context, run, step, attempt)
    estimate = locations.weigh()
    why = _why_needed(context, run, locations.row)
    refused = [f"refused for now: {why}"] if why else []
    return estimate.model_copy(update={"notes": [*estimate.notes, *refused]})


def delete_checkpoint(
    context: Context, run: RunRow, step: int, attempt: int | None
) -> CheckpointDeletion:
    """Delete one checkpoint with its copy.

    Raises:
        Conflict: something would start from it, or it does not lie where this run's must lie.
    """
    store = context.store
    locations = _locate(context, run, step, attempt)
    row = locations.row
    locations.require_own()
    estimate = locations.weigh()
    with store.transaction():
        why = _why_needed(context, store.runs.get(run.id), row)
        if why is not None:
            raise Conflict(f"the checkpoint at step {step:,} is needed: {why}.")
        # From here on nothing can start from it, even if the removal fails.
        store.checkpoints.mark_removed(run.id, attempt=row.attempt, step=row.step)
    locations.remove_folder()
    if locations.copy_url is not None:
        locations.remove_copy()
        store.checkpoints.note_copies(run.id, [CopyReport(row.path, locations.copy_url, "removed")])
    return estimate.model_copy(update={"deleted": True})


def record_evaluation(
    context: Context, run: RunRow, step: int, attempt: int | None, made: Evaluation
) -> Evaluation:
    """Add an evaluation of a checkpoint to the scores of its attempt, once; return it as recorded.

    Raises:
        UserError: it has other values than those of tasks, or NotFound: of no checkpoint.
    """
    store, row = context.store, _locate(context, run, step, attempt).row
    if wrong := [name for name in made.values if task_of(name) is None]:
        raise UserError(f"{wrong[0]} is not of a task.", hint="An evaluation has task/NAME/...")
    # At the time of the step, so that curves over time stay in order.
    made = made.model_copy(update={"step": step, "time": row.created_at})
    line = made.model_dump_json()
    add_score(store, attempt_id(run.id, row.attempt), line, mark=line)
    return made


def _locate(context: Context, run: RunRow, step: int, attempt: int | None) -> CheckpointLocations:
    row = find(run, context.store.checkpoints.of_run(run.id), step, attempt)
    return CheckpointLocations(homes.runs_dir(context.home), run, row)


def _why_needed(context: Context, run: RunRow, row: CheckpointRow) -> str | None:
    """Return why the checkpoint cannot be deleted now; None when it can."""
    store, state = context.store, RunState(run.state)
    forks = store.checkpoints.pinned_by_forks(run.id, row.path)
    if forks:
        return f"{shown_run(forks[0])} waits to start from it"
    if state.active:
        return f"{run.name} is running and manages its own checkpoints"
    newest = max(store.checkpoints.of_run(run.id), key=lambda one: (one.attempt, one.step))
    if not state.ended and (newest.attempt, newest.step) == (row.attempt, row.step):
        return f"{run.name} is {run.state} and would resume from it"
    return None


def record_copies(
    store: Store, attempt_id: str, news: Sequence[CopyReport]
) -> tuple[list[str], list[str]]:
    """Record copies that were made, failed or were removed.

    Returns:
        The paths of copies whose checkpoints are not registered yet, and of those to remove.

    Raises:
        UserError: a copy lies outside the location that the run's spec names. Nothing is recorded.
    """
    attempt = store.attempts.get(attempt_id)
    run = store.runs.get(attempt.run_id)
    for place, one in enumerate(news):
        _refuse_stray(run, attempt.number, f"copies[{place}]", one)
    with store.transaction():
        # A node may still copy the last checkpoint of an ended run while it is deleted.
        if store.runs.is_deleted(run.id):
            return [], [one.path for one in news if one.state != "removed"]
        unknown = store.checkpoints.note_copies(run.id, news)
    superfluous = copies_to_remove(
        store.checkpoints.copied(run.id),
        run.stored.checkpoint_policy,
        store.checkpoints.needed_by_forks(run.id),
    )
    return unknown, superfluous


def _refuse_stray(run: RunRow, attempt: int, field: str, one: CopyReport) -> None:
    """Reject a copy outside the spec's location: recorded copies are later read and removed."""
    at = layout.checkpoint_at(one.path)
    if at is None or at[0] > attempt:
        raise UserError(
            f"{field}.path is {one.path!r}; a checkpoint's is "
            f"attempt-<1 to {attempt}>/{layout.CHECKPOINTS}/step-<8 digits>."
        )
    place = copies_at(run.spec, run.id, one.path)
    if place is None:
        raise UserError(f"{field}.url is {one.url!r}; the run's spec names no place for copies.")
    if one.url != place:
        raise UserError(f"{field}.url is {one.url!r}; this copy lies at {place}.")
