"""``lehr spec``: specs and projects to begin with, model presets, JSON Schemas for editors."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.output import JsonOption, console, print_fitting, print_json, table

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(group, name="spec")


class ReplacedPart(StrEnum):
    MODEL = "model"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


class SpecKind(StrEnum):
    RUN = "run"
    SWEEP = "sweep"
    ROLLOUT = "rollout"


_LAUNCH = {SpecKind.RUN: "submit", SpecKind.SWEEP: "sweep", SpecKind.ROLLOUT: "rollout"}


@group.callback()
def about() -> None:
    """Write a spec to begin with, or a small project that changes a part of Lehr's trainer.

    Both train without changes. Also: model presets, and JSON Schemas for editors.
    """


@group.command("new")
def new(
    kind: Annotated[SpecKind, typer.Argument(help="The kind of the spec.")] = SpecKind.RUN,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The new file. Default: the kind, as in run.yaml."),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write it for this script of the current folder: its arguments, and for a sweep "
            "values around its learning rate. The script is read, not run.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Output of the script, to find the lines with values by."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a small spec with comments that trains within minutes, or one for your script.

    JSON: {file: PATH}.
    """
    path = file or Path(f"{kind.value}.yaml")
    text = _of_script(kind, script, log, path.parent)
    try:
        with path.open("x") as output:
            output.write(text)
    except FileExistsError:
        raise UserError(
            f"{path} exists already.", hint=f"lehr spec new {kind.value} -o OTHER.yaml"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    if as_json:
        print_json({"file": str(path)})
    else:
        _print_next(f"{path} is written.", path, _LAUNCH[kind])


def _of_script(kind: SpecKind, script: str | None, log: Path | None, folder: Path) -> str:
    from lehr.code.script_spec import read_script, spec_text
    from lehr.specs.examples import example

    if script is None:
        if log is not None:
            raise UserError("--log needs the script that printed it.", hint="Add --script FILE")
        return example(kind.value)
    if kind is SpecKind.ROLLOUT:
        raise UserError("A rollout takes no script.", hint="lehr spec new sweep --script FILE")
    from lehr.faces.cli.run import program

    entry = program([script])["script"]
    try:
        lines = log.read_text("utf-8", "replace").splitlines() if log is not None else None
    except OSError as error:
        raise UserError(f"--log {log} cannot be read: {error.strerror}.") from None
    root = os.path.relpath(Path.cwd(), folder)
    return spec_text(kind.value, entry, root, read_script(Path.cwd(), entry, lines))


@group.command("trainer")
def trainer(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files.")],
    part: Annotated[
        ReplacedPart, typer.Option(help="The part of Lehr's trainer to replace.")
    ] = ReplacedPart.MODEL,
    as_json: JsonOption = False,
) -> None:
    """Write a project that replaces a part of the trainer.

    It has a file with that part, and a spec that trains with it.

    JSON: {folder: PATH, files: [NAME]}.
    """
    from lehr.specs.new_trainer import write_project

    files = write_project(folder, part.value)
    if as_json:
        print_json({"folder": str(folder), "files": files})
    else:
        _print_next(f"{folder} has {' and '.join(files)}.", folder / "run.yaml", "submit")


def _print_next(done: str, spec: Path, verb: str) -> None:
    out = console()
    out.print(done, markup=False)
    out.print(f"  Plan it: lehr plan {spec}", style="dim", soft_wrap=True, markup=False)
    out.print(f"  Train it: lehr {verb} {spec} --watch", style="dim", soft_wrap=True, markup=False)


@group.command("schema")
def schema(
    kind: Annotated[SpecKind, typer.Argument(help="Kind of file.")],
    as_json: JsonOption = False,  # noqa: ARG001 - taken like everywhere; it is JSON either way
) -> None:
    """Print the JSON Schema of a run, sweep or rollout file, for editors that check YAML.

    Save it (lehr spec schema sweep > sweep.schema.json) and begin the YAML with
    "# yaml-language-server: $schema=sweep.schema.json".
    """
    from lehr.specs import json_schema

    print_json(json_schema(kind.value))


@group.command("presets")
def presets(as_json: JsonOption = False) -> None:
    """List model presets and their sizes. Use one as `model: NAME` in a spec.

    JSON: {presets: [{name, summary, parameters, embedding_parameters, flops_per_token, values}]}.
    """
    from pydantic import TypeAdapter

    from lehr_trainer.configs.presets import MODEL_PRESETS
    from lehr_trainer.configs.train import ModelConfig
    from lehr_trainer.planning.counts import flops_per_token, parameter_counts

    adapter: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
    found: list[dict[str, Any]] = []
    for name, preset in MODEL_PRESETS.items():
        model = adapter.validate_python(preset.values)
        counts = parameter_counts(model)
        length = min(2048, model.max_sequence_length)
        found.append(
            {
                "name": name,
                "summary": preset.summary,
                "parameters": counts.total,
                "embedding_parameters": counts.embedding,
                "sequence_length": length,
                "flops_per_token": flops_per_token(model, length),
                "values": model.model_dump(mode="json"),
            }
        )
    if as_json:
        print_json({"presets": found})
        return
    rows = table(
        "preset",
        "parameters",
        "embedding",
        "layers",
        "hidden",
        "FLOPs/token",
        "what it is",
        right=("parameters", "embedding", "layers", "hidden", "FLOPs/token"),
    )
    for preset_ in found:
        rows.add_row(
            preset_["name"],
            formats.count(preset_["parameters"]),
            formats.millions(preset_["embedding_parameters"]),
            str(preset_["values"]["num_hidden_layers"]),
            str(preset_["values"]["hidden_size"]),
            f"{formats.si(preset_['flops_per_token'])} at {preset_['sequence_length']:,}",
            preset_["summary"],
        )
    print_fitting(rows, fold="what it is", spare=["embedding", "hidden", "layers"])
