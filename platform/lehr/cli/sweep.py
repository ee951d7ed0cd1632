"""``lehr sweep``: plan, confirm, launch."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, to_jsonable
from lehr.cli.plan import (
    OverridesArgument,
    Price,
    SpecFile,
    of_another_kind,
    read_spec,
    show_sweep_plan,
)
from lehr.cli.run_actions import confirm
from lehr.cli.submit import nothing_recorded
from lehr.cli.watch import watch_until_end
from lehr.errors import SpecError, UserError

app = typer.Typer(rich_markup_mode=None)


@app.command("sweep")
def sweep(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan and its trials. Needs no server.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show its progress until it ends.")
    ] = False,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plan of a sweep, ask for confirmation, launch it.

    JSON: {sweep: SweepDetail}, without confirmation; with --dry-run that of `lehr plan --json`.
    """
    try:
        spec = read_spec(file, overrides)
    except SpecError as error:
        raise nothing_recorded(error) from None
    if spec.kind != "sweep":
        raise of_another_kind(file, spec, "sweep")
    if dry_run:
        show_sweep_plan(spec, price=price, as_json=as_json, each_trial=True)
        return
    client = connect()
    client.health()
    if not as_json:
        show_sweep_plan(spec, price=price)
        if not yes:
            confirm("Launch?")
    try:
        launched = client.sweep(spec)
    except UserError as error:
        raise nothing_recorded(error) from None
    if as_json:
        print_json({"sweep": to_jsonable(launched.detail)})
    else:
        out = console()
        queued = sum(launched.view.counts.values())
        out.print(f"[bold]{launched.name}[/]  {launched.id}  {queued} runs queued")
        for warning in launched.detail.warnings:
            out.print(f"! {escaped(warning)}", style="yellow")
        out.print(f"  {launched.url}", style="dim")
        if not watch:
            name = launched.name
            out.print(
                f"  Watch it: lehr watch {name}        Stop it: lehr cancel {name}", style="dim"
            )
    if watch and not watch_until_end(client, launched, as_json=as_json):
        raise typer.Exit(1)
