"""``lehr report``: a run, sweep or rollout as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr import formats
from lehr.cli.connect import Ref, connect
from lehr.cli.output import JsonOption, console, escaped, notes, print_json

app = typer.Typer(rich_markup_mode=None)


@app.command("report")
def report(
    ref: Ref,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file. Default: NAME-report.html."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a run, sweep or rollout: one HTML file to send to somebody or to print.

    The file contains verdicts with their intervals, figures, config, code, alerts and cost. It
    needs no network. Values of `env` are hidden.

    JSON: {report: {id, name, path, bytes}}.
    """
    found = connect().find_any(ref)
    target = output if output is not None else Path(f"{found.name}-report.html")
    with notes().status(f"Reading {escaped(found.name)}"):
        found.report(target)
    size = target.stat().st_size
    if as_json:
        made = {"id": found.id, "name": found.name, "path": str(target), "bytes": size}
        print_json({"report": made})
    else:
        console().print(f"{escaped(str(target))}: {formats.size(size)}, {escaped(found.name)}")
