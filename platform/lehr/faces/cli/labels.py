"""``lehr note`` and ``lehr tag``: texts and words that people add to runs."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from lehr.errors import UserError, nearest
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.output import JsonOption, console, escaped, print_json

app = typer.Typer(rich_markup_mode=None)


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


_VERBS = ("add", "remove")


@app.command("tag")
def tag(
    ref: Ref,
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|remove TAG...]", help="Tags to add or remove. Without them: list tags."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add or remove tags of a run, or of all runs of a sweep.

    Find runs by tag: lehr ls --tag WORD. JSON: {run: RunDetail} or {sweep: SweepDetail}.
    """
    from lehr.faces.client import Sweep

    verb, tags = _read(change or [])
    found = connect().find(ref)
    runs = found.runs() if isinstance(found, Sweep) else [found]
    for run in runs if verb else ():
        run.tag(*tags) if verb == "add" else run.untag(*tags)
    if as_json:
        # The sweep was read before its runs changed.
        key = "sweep" if isinstance(found, Sweep) else "run"
        print_json({key: found.refresh().detail})
        return
    for run in runs:
        tags_text = " ".join(escaped(one) for one in run.tags) or "[dim]no tags[/]"
        console().print(f"{escaped(run.name)} ({run.id}): {tags_text}", highlight=False)


def _read(change: list[str]) -> tuple[Literal["add", "remove"] | None, list[str]]:
    if not change:
        return None, []
    verb, *tags = change
    if verb not in _VERBS:
        near = nearest(verb, _VERBS) or "add"
        raise UserError(
            f"{verb!r} is neither add nor remove.",
            hint=f"lehr tag RUN {near} {' '.join(tags or [verb])}",
        )
    if not tags:
        raise UserError(f"lehr tag RUN {verb}: no tag given.", hint=f"lehr tag RUN {verb} WORD")
    return ("add" if verb == "add" else "remove"), tags
