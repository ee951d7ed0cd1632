"""``lehr export`` and ``lehr report``: write metrics, or a report, to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from lehr.base import formats
from lehr.errors import NotFound, UserError
from lehr.faces.cli.checkpoints import parse_step
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.output import JsonOption, escaped, escaped_json, notes, print_result
from lehr.faces.client.transport import save

app = typer.Typer(rich_markup_mode=None)
Form = Literal["jsonl", "csv", "parquet"]
_SUFFIXES: dict[str, Form] = {
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".parquet": "parquet",
}


@app.command("export")
def export(
    ref: Ref,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: standard output.")
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option("--format", "-f", help="Format. Default: from the file's suffix, else jsonl."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export every point of every metric of a run: one row per step, one column per metric.

    JSON: {exported: {run, path, format, bytes}}; needs -o.
    """
    if form is None and output is not None and output.suffix not in _SUFFIXES:
        raise UserError(
            f"{output} has the suffix {output.suffix or 'none'}; "
            "metrics are written as .jsonl, .csv or .parquet.",
            hint="For this name, add --format jsonl.   Weights: lehr checkpoints export RUN FOLDER",
        )
    chosen = form or (_SUFFIXES[output.suffix] if output is not None else "jsonl")
    if output is None and (as_json or (chosen == "parquet" and sys.stdout.isatty())):
        raise UserError(
            "Parquet on a terminal and --json need an output file.", hint="Add -o FILE."
        )
    run = connect().run(ref)
    if not run.metrics():
        raise NotFound(
            f"run {run.name} ({run.id}) has no metrics, so there is nothing to export.",
            hint=f"Its state: lehr show {run.id}",
        )
    with notes().status(f"Reading {escaped(run.name)}"):
        data = run.export(chosen)
    if output is None:
        if chosen != "parquet":
            data = escaped_json(data.decode()).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    save(data, output)
    exported = {"run": run.id, "path": str(output), "format": chosen, "bytes": len(data)}
    text = f"{escaped(str(output))}: {formats.size(len(data))} of {escaped(run.name)}"
    print_result({"exported": exported}, text, as_json=as_json)


@app.command("report")
def report(
    ref: Ref,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: NAME-report.html.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="N|best|last", help="Add this checkpoint of the run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a run, sweep or rollout: one HTML file to send to somebody or to print.

    The file contains verdicts with their intervals, figures, config, code, alerts and cost. It
    needs no network. Values of `env` are hidden. A file *.lehr.html also contains spec, code,
    metrics, logs and record of runs that have ended, for lehr open, lehr verify and unzip.

    JSON: {report: {id, name, path, bytes}}.
    """
    found = connect().find_any(ref)
    target = output if output is not None else Path(f"{found.name}-report.html")
    options = {} if checkpoint is None else {"checkpoint": parse_step(checkpoint, "--checkpoint")}
    if options and found.noun != "run":
        raise UserError(f"--checkpoint is for a run; {found.name} is a {found.noun}.")
    with notes().status(f"Reading {escaped(found.name)}"):
        found.report(target, **options)
    size = target.stat().st_size
    made = {"id": found.id, "name": found.name, "path": str(target), "bytes": size}
    text = f"{escaped(str(target))}: {formats.size(size)}, {escaped(found.name)}"
    print_result({"report": made}, text, as_json=as_json)
