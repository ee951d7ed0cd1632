"""``lehr schema``: print the JSON Schema of spec files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from lehr.cli.output import JsonOption, print_json

app = typer.Typer(rich_markup_mode=None)


class SpecKind(StrEnum):
    RUN = "run"
    SWEEP = "sweep"
    ROLLOUT = "rollout"


@app.command("schema")
def schema(
    kind: Annotated[SpecKind, typer.Argument(help="Kind of file.")],
    as_json: JsonOption = False,  # noqa: ARG001 - taken like everywhere; it is JSON either way
) -> None:
    """Print the JSON Schema of a run, sweep or rollout file, for editors that check YAML.

    Save it (lehr schema sweep > sweep.schema.json) and begin the YAML with
    "# yaml-language-server: $schema=sweep.schema.json".
    """
    from lehr.specs import json_schema

    print_json(json_schema(kind.value))
