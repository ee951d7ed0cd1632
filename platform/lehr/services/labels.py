"""Notes and tags: texts and words that may change at any time, while the spec may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lehr.errors import UserError

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
