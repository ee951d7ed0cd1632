"""``lehr new``: write files to begin with."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lehr.cli.output import JsonOption, console, escaped, print_json

app = typer.Typer(rich_markup_mode=None)
new = typer.Typer(
    help="Write a small project to begin with.", rich_markup_mode=None, no_args_is_help=True
)
app.add_typer(new, name="new")


class ReplacedPart(StrEnum):
    MODEL = "model"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


@new.callback()
def about() -> None:
    """Write a small project to begin with. It trains as it is."""


@new.command("trainer")
def trainer(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files.")],
    part: Annotated[
        ReplacedPart, typer.Option("--part", help="The part of Lehr's trainer to replace.")
    ] = ReplacedPart.MODEL,
    as_json: JsonOption = False,
) -> None:
    """Write a project with a part of the trainer.

    It replaces that part of Lehr's trainer: its file, and a spec that trains it.

    JSON: {folder: PATH, files: [NAME]}.
    """
    from lehr.new_trainer import write_project

    files = write_project(folder, part.value)
    if as_json:
        print_json({"folder": str(folder), "files": files})
        return
    out = console()
    out.print(f"{escaped(str(folder))} has {' and '.join(files)}.")
    spec = escaped(str(folder / "run.yaml"))
    out.print(f"  Plan it: lehr plan {spec}", style="dim", soft_wrap=True)
    out.print(f"  Train it: lehr submit {spec} --watch", style="dim", soft_wrap=True)
