"""``lehr cancel``, ``pause``, ``retry``, ``extend``, ``note`` and others: actions on runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lehr.base import formats
from lehr.control.lifecycle import RunState
from lehr.errors import UserError
from lehr.faces.cli.connect import ActRef, Ref, connect
from lehr.faces.cli.group_table import rollout_headline
from lehr.faces.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    console,
    escaped,
    notes,
    print_json,
    print_result,
    say,
)
from lehr.schemas.sweeps import SweepDeletion
from lehr.specs.overrides import parse_overrides

if TYPE_CHECKING:
    from lehr.faces.client import Run, Sweep

app = typer.Typer(rich_markup_mode=None)


@app.command("cancel")
def cancel(ref: ActRef, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Stop a run, sweep or rollout for good, without saving. To save a run first: `lehr pause`.

    JSON: {run: RunDetail}, {sweep: SweepDetail} or {rollout: RolloutDetail}.
    """
    from lehr.faces.client import Rollout, Sweep

    target = connect().find_any(ref, "cancel")
    if isinstance(target, Rollout):
        target.cancel()
        print_result({"rollout": target.detail}, rollout_headline(target.detail), as_json=as_json)
        return
    if isinstance(target, Sweep):
        counts = target.view.counts.items()
        open_runs = sum(count for state, count in counts if not RunState(state).ended)
        if not yes and not as_json and open_runs > 1:
            confirm(f"Cancel {open_runs} runs of sweep {target.name}?")
        target.cancel()
        left = "1 run is being" if open_runs == 1 else f"{open_runs} runs are being"
        what = left if open_runs else "it has ended, so nothing is"
        print_result(
            {"sweep": target.detail},
            f"{target.name}: {what} cancelled.",
            as_json=as_json,
        )
        return
    _report(target.cancel(), as_json)


@app.command("pause")
def pause(ref: ActRef, as_json: JsonOption = False) -> None:
    """Save a run, or a campaign, then free its GPUs. JSON: {run: RunDetail}, {sweep: ...}."""
    _report(connect().find(ref, "pause").pause(), as_json)


@app.command("resume")
def resume(ref: ActRef, as_json: JsonOption = False) -> None:
    """Queue a paused run or campaign, from its checkpoint. JSON: {run: RunDetail}, {sweep: ...}."""
    _report(connect().find(ref, "resume").resume(), as_json)


@app.command("retry")
def retry(ref: ActRef, as_json: JsonOption = False) -> None:
    """Queue a failed run again, or all failed trials of a sweep. They resume from checkpoints.

    Trials that never ran because the sweep was stopped are queued too.

    JSON: {run: RunDetail} or {sweep: SweepDetail}.
    """
    _report(connect().find(ref, "retry").retry(), as_json)


@app.command("extend")
def extend(
    ref: Ref,
    more: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT...",
            help="What to add. To a grid: PATH=[VALUES, ...]. To a list: points=[{PATH: VALUE}]. "
            "To a grid or list with several seeds: train.seed=[SEEDS, ...]. To a search: trials=N, "
            "for N more trials. To a campaign: gpu_hours=N, for a larger budget.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Add trials to a sweep, even after it has finished. JSON: {sweep: SweepDetail}."""
    additions = {path: value for path, value, _ in parse_overrides(more)}
    sweep = connect().find_sweep(ref)
    points, trials = additions.pop("points", None), additions.pop("trials", None)
    hours = additions.pop("gpu_hours", None)
    for path, value in additions.items():
        if not isinstance(value, list):
            raise UserError(f"{path} is {value!r}; it must be a list.", hint=f"{path}=[{value}]")
    if points is not None and not isinstance(points, list):
        raise UserError("points must be a list.", hint="points=[{train.optimizer.lr: 1e-3}]")
    if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int)):
        raise UserError(f"trials is {trials!r}; it must be a whole number.")
    sweep.extend(additions or None, points=points, trials=trials, gpu_hours=hours)
    _report(sweep, as_json)


def _report(run: Run | Sweep, as_json: bool) -> None:
    from lehr.faces.client import Sweep

    if isinstance(run, Sweep):
        counts = ", ".join(f"{count} {state}" for state, count in run.view.counts.items())
        print_result({"sweep": run.detail}, f"{run.name}: {counts}", as_json=as_json)
        return
    desired = run.view.desired
    request = {"cancel": "will be cancelled", "pause": "will be paused"}.get(desired)
    if run.state in {"cancelled", "paused"}:
        request = "will be queued again" if (run.state, desired) == ("paused", "run") else None
    state = run.state if request is None else f"{run.state}, {request}"
    print_result({"run": run.detail}, f"{run.name} ({run.id}): {state}", as_json=as_json)


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
def delete(ref: ActRef, yes: YesOption = False, as_json: JsonOption = False) -> None:
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


@app.command("note")
def note(
    ref: Ref,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="The new note, or - to read it from standard input. Default: show the note.",
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the note.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show or replace the note of a run, sweep or rollout.

    Find runs by their notes: lehr ls --note TEXT. JSON: {id, name, note}.
    """
    if clear and text is not None:
        raise UserError("TEXT and --clear were both given.", hint="Leave one of them out.")
    found = connect().find_any(ref)
    if clear or text is not None:
        new = "" if text is None else sys.stdin.read() if text == "-" else text
        if not clear and not new.strip():
            raise UserError("the note is empty.", hint=f"To remove it: lehr note {ref} --clear")
        found.set_note(new)
    if as_json:
        print_json({"id": found.id, "name": found.name, "note": found.note})
    elif found.note:
        console().print(escaped(found.note), highlight=False, soft_wrap=True)
    else:
        console().print(f"{escaped(found.name)} has no note.", style="dim")


@app.command("tag")
def tag(
    ref: Ref,
    verb: Annotated[
        Literal["add", "remove"] | None,
        typer.Argument(help="What to do with the tags. Without it: list them."),
    ] = None,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG...]", help="The tags.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Add or remove tags of a run, or of all runs of a sweep.

    Find runs by tag: lehr ls --tag WORD. JSON: {run: RunDetail} or {sweep: SweepDetail}.
    """
    from lehr.faces.client import Sweep

    if verb and not tags:
        raise UserError(f"lehr tag RUN {verb}: no tag given.", hint=f"lehr tag RUN {verb} WORD")
    found = connect().find(ref)
    runs = found.runs() if isinstance(found, Sweep) else [found]
    for run in runs if verb else ():
        run.tag(*tags or ()) if verb == "add" else run.untag(*tags or ())
    if as_json:
        # The sweep was read before its runs changed.
        print_json({found.noun: found.refresh().detail})
        return
    for run in runs:
        tags_text = " ".join(escaped(one) for one in run.tags) or "[dim]no tags[/]"
        console().print(f"{escaped(run.name)} ({run.id}): {tags_text}", highlight=False)


@app.command("sync")
def sync(
    folder: Annotated[
        Path, typer.Argument(help="Folder that lehr_log.init printed, or one above it.")
    ] = Path("lehr-runs"),
    as_json: JsonOption = False,
) -> None:
    """Send what is left of runs that a script has logged by lehr_log.init. May be repeated.

    JSON: {attempts: [{folder, run_id, result}]}.
    """
    from lehr.faces import external

    attempts = []
    for attempt in external.sync(folder):
        attempts.append(attempt)
        if not as_json:
            say("{run_id}: {result}   {folder}".format(**attempt))
    if as_json:
        print_json({"attempts": attempts})
