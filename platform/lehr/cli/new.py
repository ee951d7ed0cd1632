"""``lehr new``: write a spec to begin with, or a project that replaces a part of the trainer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lehr.cli.output import JsonOption, console, escaped, print_json
from lehr.errors import UserError

app = typer.Typer(rich_markup_mode=None)
new = typer.Typer(
    help="Write a spec to begin with, or a project that changes a part of Lehr's trainer.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(new, name="new")


class ReplacedPart(StrEnum):
    MODEL = "model"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


class ExampleKind(StrEnum):
    RUN = "run"
    SWEEP = "sweep"
    ROLLOUT = "rollout"


_LAUNCH = {ExampleKind.RUN: "submit", ExampleKind.SWEEP: "sweep", ExampleKind.ROLLOUT: "rollout"}


@new.callback()
def about() -> None:
    """Write a spec to begin with, or a small project that changes a part of Lehr's trainer.

    Both train without changes.
    """


@new.command("spec")
def spec(
    kind: Annotated[ExampleKind, typer.Argument(help="The kind of the spec.")] = ExampleKind.RUN,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The new file. Default: the kind, as in run.yaml."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a small spec with comments that trains within minutes.

    JSON: {file: PATH}.
    """
    from lehr.examples import example

    path = file or Path(f"{kind.value}.yaml")
    try:
        with path.open("x") as output:
            output.write(example(kind.value))
    except FileExistsError:
        raise UserError(
            f"{path} exists already.", hint=f"lehr new spec {kind.value} -o OTHER.yaml"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    if as_json:
        print_json({"file": str(path)})
        return
    out = console()
    name = escaped(str(path))
    out.print(f"{name} is written.")
    out.print(f"  Plan it: lehr plan {name}", style="dim", soft_wrap=True)
    out.print(f"  Train it: lehr {_LAUNCH[kind]} {name} --watch", style="dim", soft_wrap=True)


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
