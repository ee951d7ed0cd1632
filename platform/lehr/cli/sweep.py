"""``lehr sweep``: plan, confirm, launch."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.launch import (
    DRY_RUN,
    WatchOption,
    check,
    confirmed,
    launch,
    print_next,
    read_to_launch,
)
from lehr.cli.output import JsonOption, YesOption, console, print_json
from lehr.cli.plan import (
    OverridesArgument,
    Price,
    SpecFile,
    print_warnings,
    show_plan,
)
from lehr.cli.watch import watch_until_end

app = typer.Typer(rich_markup_mode=None)


@app.command("sweep")
def sweep(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    watch: WatchOption = False,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plan of a sweep, ask for confirmation, launch it.

    JSON: {sweep: SweepDetail}; with --dry-run the JSON of `lehr plan --json`. --json skips the
    confirmation.
    """
    from lehr.specs import SweepSpec, expand

    spec = read_to_launch(file, overrides, SweepSpec, "sweep")
    if dry_run:
        show_plan(spec, price=price, as_json=as_json, each_trial=True, check=check)
        return
    client = confirmed(
        lambda: show_plan(spec, price=price),
        lambda: [run for _, run in expand(spec)],
        yes=yes,
        as_json=as_json,
    )
    launched = launch(client, client.sweep, spec)
    if as_json:
        print_json({"sweep": launched.detail})
    else:
        out = console()
        queued = sum(launched.view.counts.values())
        out.print(f"[bold]{launched.name}[/]  {launched.id}  {queued} runs queued")
        print_warnings(launched.detail.warnings)
        print_next(launched, watch=watch)
    if watch and not watch_until_end(client, launched, as_json=as_json):
        raise typer.Exit(1)
