"""``lehr submit``: submit one run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.errors import LehrError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.launch import DRY_RUN, WatchOption, check, launch, read_to_launch, refuse
from lehr.faces.cli.output import JsonOption, console, print_json, state_text
from lehr.faces.cli.plan import (
    OverridesArgument,
    SpecFile,
    print_warnings,
    show_plan,
)
from lehr.faces.cli.watch import watch_until_end

if TYPE_CHECKING:
    from lehr.faces.client import Run

app = typer.Typer(rich_markup_mode=None)
_TIMEOUT_S = 1.0


@app.command("submit")
def submit(
    file: SpecFile,
    overrides: OverridesArgument = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run, instead of the file's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit one run. It is recorded and queued when this command returns.

    JSON: {run: RunDetail}; with --dry-run the JSON of `lehr plan --json`.
    """
    from lehr.specs import RunSpec

    given = [*(overrides or []), *([f"name={name}"] if name else [])]
    spec = read_to_launch(file, given, RunSpec, "run")
    if dry_run:
        show_plan(spec, as_json=as_json, check=check)
        return
    client = connect()
    refuse([spec], client)
    run = launch(client, client.submit, spec)
    if as_json:
        print_json({"run": run.detail})
    else:
        _first_word(run)
        out = console()
        reason = run.view.pending_reason
        out.print(f"[bold]{run.name}[/]  {run.id}  {state_text(run.state, reason)}")
        print_warnings(run.detail.warnings)
        out.print(f"  {run.url}", style="dim")
        if not watch:
            out.print(
                f"  Watch it: lehr watch {run.id}        Output: lehr logs -f {run.id}",
                style="dim",
            )
    if watch and not watch_until_end(client, run, as_json=as_json):
        raise typer.Exit(1)


def _first_word(run: Run) -> None:
    """Wait briefly for the dispatcher to place the run, or to report why it waits."""
    deadline = time.monotonic() + _TIMEOUT_S
    while run.state == "queued" and not run.view.pending_reason and time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            run.refresh()
        except LehrError:  # Already recorded: this must not look like a rejection.
            return
