"""``lehr new``: write a project that replaces a part of the trainer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lehr.cli.output import JsonOption, console, escaped, print_json

app = typer.Typer(rich_markup_mode=None)
new = typer.Typer(
    help="Write a small project that changes a part of Lehr's trainer.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(new, name="new")


class ReplacedPart(StrEnum):
    MODEL = "model"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


@new.callback()
def about() -> None:
    """Write a small project that changes a part of Lehr's trainer. It trains without changes."""


@new.command("trainer")
def trainer(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files.")],
    part: Annotated[
        ReplacedPart, typer.Option("--part", help="The part of Lehr's trainer to replace.")
    ] = ReplacedPart.MODEL,
    as_json: JsonOption = False,
) -> None:
    """Write a project that replaces a part of the trainer.

    It has a file with that part, and a spec that trains with it.

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
