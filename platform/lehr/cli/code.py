"""``lehr code``: the code that trains a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, table

app = typer.Typer(rich_markup_mode=None)
code = typer.Typer(
    help="Show, compare and check out the code of runs.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(code, name="code")

Capsule = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, or the digest of a capsule (6 or more digits).")
]


@code.callback()
def about() -> None:
    """Show, compare and check out the code that trains a run.

    A run keeps its code from submission on, as a capsule: every attempt trains with exactly it.
    """


@code.command("show")
def show(ref: Capsule, as_json: JsonOption = False) -> None:
    """List the files of a run's code. JSON: {capsule: CapsuleView}."""
    found = connect().code(ref)
    if as_json:
        print_json({"capsule": found})
        return
    out = console()
    what = "the installed trainer" if found.installed else f"{len(found.files):,} files"
    out.print(f"[bold]{found.digest[:12]}[/]  {what}, {found.bytes / 1e6:,.1f} MB")
    rows = table("file", "bytes")
    for file in found.files:
        rows.add_row(escaped(file.name), f"{file.bytes:,}")
    out.print(rows)


@code.command("diff")
def diff(first: Capsule, second: Capsule, as_json: JsonOption = False) -> None:
    """Show what changed from the code of one run to that of another. JSON: {diff: CodeDiff}."""
    found = connect().code_diff(first, second)
    if as_json:
        print_json({"diff": found})
        return
    out = console()
    if not found.changes:
        out.print(f"The same code: capsule {found.first[:12]}.")
        return
    for change in found.changes:
        out.print(f"[bold]{change.change}[/]  {escaped(change.name)}")
    for change in found.changes:
        if change.patch:
            out.print()
            out.print(escaped(change.patch.rstrip("\n")), highlight=False, soft_wrap=True)


@code.command("checkout")
def checkout(
    ref: Capsule,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files.")],
    as_json: JsonOption = False,
) -> None:
    """Write the code of a run into a folder. JSON: {folder: PATH}."""
    made = connect().code_checkout(ref, folder)
    if as_json:
        print_json({"folder": str(made)})
        return
    out = console()
    out.print(f"{escaped(str(made))} has the code of {escaped(ref)}.")
    out.print(
        f"  Use it: PYTHONPATH={escaped(str(made / 'trainer'))}:{escaped(str(made / 'project'))}",
        style="dim",
        soft_wrap=True,
    )
