"""``lehr note``: show or replace the note of a run, sweep or rollout."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lehr.cli.connect import Ref, connect
from lehr.cli.output import JsonOption, console, escaped, print_json
from lehr.errors import UserError

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
