"""Copies of checkpoints in another storage, as the nodes report them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lehr.control.saved_points import copies_at, copies_to_remove
from lehr.errors import UserError
from lehr_trainer.contract import layout

if TYPE_CHECKING:
    from lehr.store import Store
    from lehr.store.records.checkpoints import CopyReport
    from lehr.store.tables import RunRow


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
