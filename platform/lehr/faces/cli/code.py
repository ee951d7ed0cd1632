"""``lehr code``: the code that trains a run."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.errors import NotFound
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, console, escaped, print_json, table

if TYPE_CHECKING:
    from lehr.specs.program import Program

app = typer.Typer(rich_markup_mode=None)
code = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(code, name="code")

Capsule = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, or 6 or more characters of a capsule's digest.")
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
    """Write the code of a run into a folder, and show how to run it. JSON: {folder: PATH}."""
    client = connect()
    made = client.code_checkout(ref, folder)
    if as_json:
        print_json({"folder": str(made)})
        return
    out = console()
    out.print(f"{escaped(str(made))} has the code of {escaped(ref)}.")
    program: Program | None = None
    with suppress(NotFound):  # It is a capsule.
        program = client.run(ref).spec.trainer
    use = (
        f"Use it: {_import_path(made, 'trainer', 'project')}"
        if program is None
        else f"Run it: {_command(made.absolute(), program)}"
    )
    out.print(f"  {escaped(use)}", style="dim", soft_wrap=True, highlight=False)


def _import_path(made: Path, *folders: str) -> str:
    return f"PYTHONPATH={shlex.quote(':'.join(str(made.absolute() / name) for name in folders))}"


def _command(made: Path, program: Program) -> str:
    """Return the shell command that does what the run does. Style file: its file is written."""
    import yaml

    from lehr.specs.program import arguments, effective_args

    file = made / "args.yaml"
    if program.style == "file":
        file.write_text(yaml.safe_dump(effective_args(program, None), sort_keys=False))
    wandb = ["trainer/lehr_log/as_wandb"] if program.wandb == "lehr" else []
    entry = ["-m", program.module] if program.module is not None else [str(program.script)]
    given = arguments(program, file=str(file), checkpoint=None)
    project = made / "project"
    go = f"cd {shlex.quote(str(project if project.is_dir() else made))}"
    path = _import_path(made, *wandb, "project", "trainer")
    return f"{go} && {path} {shlex.join(['python', *entry, *given])}"
