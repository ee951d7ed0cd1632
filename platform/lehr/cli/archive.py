"""``lehr archive`` and ``delete``: hide runs from lists, or delete their files."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr import formats
from lehr.cli.connect import ActRef, connect
from lehr.cli.output import (
    JsonOption,
    YesOption,
    escaped,
    notes,
    print_result,
    say,
)
from lehr.cli.run_actions import confirm
from lehr.schemas.sweeps import SweepDeletion

app = typer.Typer(rich_markup_mode=None)


@app.command("archive")
def archive(
    ref: ActRef,
    undo: Annotated[bool, typer.Option("--undo", help="Show it in lists again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Hide an ended run, a rollout, or a sweep and its runs from lists. Nothing is deleted.

    JSON: {run: RunDetail}, {sweep: SweepDetail} or {rollout: RolloutDetail}.
    """
    if undo:
        group = connect().find_any(ref).unarchive()
        text = "is no longer archived."
    else:
        group = connect().find_any(ref, "archive").archive()
        text = f"is archived. Undo: lehr archive {group.id} --undo"
    text = f"{escaped(group.name)} ({group.id}) {text}"
    print_result({group.noun: group.detail}, text, as_json=as_json)


@app.command("delete")
def delete(
    ref: ActRef,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete checkpoints, metrics and logs of an ended run, or of all runs of a sweep, for good.

    Shows first how much space it frees, including copies in storage. Spec, provenance and state
    changes are kept; the run is archived. JSON: {deleted: Deletion} or {deleted: SweepDeletion}.
    """
    run = connect().find(ref, "delete")
    if not yes:
        weighed = run.deletion()
        frees = f"{formats.size(weighed.bytes)}, {weighed.checkpoints} checkpoints"
        if isinstance(weighed, SweepDeletion):
            frees += f" of {weighed.runs} runs"
        for note in weighed.notes:
            say(f"  {note}")
        confirm(f"Delete {run.name} ({run.id}) for good? It frees {frees}.")
    with notes().status(f"Deleting {escaped(run.name)}"):
        freed = run.delete()
    print_result(
        {"deleted": freed},
        f"{escaped(run.name)} ({run.id}): {formats.size(freed.bytes)} freed; its record is kept.",
        as_json=as_json,
    )
