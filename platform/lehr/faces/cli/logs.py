"""``lehr logs``: print the output of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    notes,
    print_json,
    table,
    without_controls,
)

if TYPE_CHECKING:
    from lehr.faces.client import Run

app = typer.Typer(rich_markup_mode=None)


@app.command("logs")
def logs(
    ref: Ref,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they arrive.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", "-r", min=0, help="Rank. Default: 0.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the log, e.g. launcher.log or events.jsonl.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Attempt. Default: the newest.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Print only the last N lines.")
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", "-g", help="Print only lines with this text, each with its byte offset."
        ),
    ] = None,
    since_byte: Annotated[
        int | None, typer.Option(min=0, help="Start at this byte offset.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", "-l", help="List the logs of the run.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the output of a run. Default: rank 0 of the newest attempt.

    JSON: {run, name, lines: [...]}, with --grep {run, name, lines: [LogHit]}, or with --list
    {logs: [LogStream]}.
    """
    if rank is not None and name is not None:
        raise UserError("give --rank or --name, not both.")
    if as_json and follow:
        raise UserError(
            "--json cannot be used with --follow: it prints one document at the end.",
            hint="Leave one out.",
        )
    if grep is not None and (follow or tail is not None):
        raise UserError("--grep cannot be used with --follow or --tail.")
    if tail is not None and since_byte is not None:
        raise UserError("give --tail or --since-byte, not both.")
    run = connect().run(ref)
    if listing:
        streams = run.log_streams()
        if as_json:
            print_json({"logs": streams})
            return
        rows = table("attempt", "name", "size", right=("attempt", "size"))
        for stream in streams:
            rows.add_row(str(stream.attempt), escaped(stream.name), formats.size(stream.size_bytes))
        console().print(rows)
        return
    log = name or f"rank-{rank or 0}.log"
    if grep is not None:
        _search(run, log, grep, attempt=attempt, offset=since_byte or 0, as_json=as_json)
        return
    lines = run.logs(log, attempt=attempt, tail=tail, follow=follow, offset=since_byte)
    if as_json:
        print_json({"run": run.id, "name": log, "lines": list(lines)})
        return
    printed = False
    try:
        for line in lines:
            printed = True
            if not line.endswith("\x1b[A"):  # The cursor goes up: the next line overwrites it.
                typer.echo(without_controls(line.rstrip("\r").rpartition("\r")[2]))
    except KeyboardInterrupt:
        notes().print("\nDetached. The run continues.")
        return
    if not printed:
        reason = f" ({run.reason})" if run.reason else ""
        notes().print(f"No output yet: {run.name} is {run.state}{reason}.", markup=False)


def _search(
    run: Run, log: str, text: str, *, attempt: int | None, offset: int, as_json: bool
) -> None:
    found = run.search_logs(text, log, attempt=attempt, offset=offset)
    if as_json:
        print_json({"run": run.id, "name": log, "lines": list(found)})
        return
    printed = False
    for hit in found:
        printed = True
        typer.echo(f"{hit.offset:>10}  {without_controls(hit.text)}")
    if not printed:
        notes().print(f"No line of {log} contains {text!r}.", markup=False)
        raise typer.Exit(1)
