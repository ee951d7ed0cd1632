"""``lehr archive``, ``unarchive``, ``delete``: hide runs from lists, or delete their files."""

from __future__ import annotations

import typer

from lehr import formats
from lehr.cli.connect import ActRef, Ref, connect
from lehr.cli.output import (
    JsonOption,
    YesOption,
    console,
    escaped,
    notes,
    print_json,
    print_result,
    say,
)
from lehr.cli.run_actions import confirm
from lehr.schemas.sweeps import SweepDeletion

app = typer.Typer(rich_markup_mode=None)


@app.command("archive")
def archive(ref: ActRef, as_json: JsonOption = False) -> None:
    """Hide an ended run, a rollout, or a sweep and its runs from lists. Nothing is deleted.

    JSON: {run: RunDetail}, {sweep: SweepDetail} or {rollout: RolloutDetail}.
    """
    found = connect().find_any(ref, "archive").archive()
    if as_json:
        print_json({found.noun: found.detail})
    else:
        back = f"Undo: lehr unarchive {found.id}"
        console().print(f"{escaped(found.name)} ({found.id}) is archived. {back}")


@app.command("unarchive")
def unarchive(ref: Ref, as_json: JsonOption = False) -> None:
    """Show an archived run, sweep or rollout in lists again.

    JSON: {run: RunDetail}, {sweep: SweepDetail} or {rollout: RolloutDetail}.
    """
    found = connect().find_any(ref).unarchive()
    print_result(
        {found.noun: found.detail},
        f"{escaped(found.name)} ({found.id}) is no longer archived.",
        as_json=as_json,
    )


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
