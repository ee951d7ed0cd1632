"""``lehr sweep`` and ``lehr rollout``: plan a group of runs, confirm, launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.faces.cli.launch import (
    DRY_RUN,
    WatchOption,
    check,
    confirmed,
    launch,
    print_next,
    read_to_launch,
)
from lehr.faces.cli.output import JsonOption, YesOption, console, print_json
from lehr.faces.cli.plan import (
    OverridesArgument,
    Price,
    SpecFile,
    print_warnings,
    show_plan,
)
from lehr.faces.cli.watch import watch_until_end

if TYPE_CHECKING:
    from lehr.faces.client import Client, Rollout, Sweep

app = typer.Typer(rich_markup_mode=None)
DryRunOption = Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)]


@app.command("sweep")
def sweep(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
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
    about = f"{sum(launched.view.counts.values())} runs queued"
    _print(client, launched, about, launched.detail.warnings, watch=watch, as_json=as_json)


@app.command("rollout")
def rollout(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plan of a rollout, ask for confirmation, launch it.

    The stages are a tiny model on a CPU, one GPU, two GPUs, and the run itself. A stage starts only
    after all gates of the previous stage have passed.

    JSON: {rollout: RolloutDetail}; with --dry-run the JSON of `lehr plan --json`. --json skips the
    confirmation.
    """
    from lehr.specs import RolloutSpec, stages

    spec = read_to_launch(file, overrides, RolloutSpec, "rollout")
    if dry_run:
        show_plan(spec, price=price, as_json=as_json, check=check)
        return
    client = confirmed(
        lambda: show_plan(spec, price=price),
        lambda: [stage.train for stage in stages(spec)],
        yes=yes,
        as_json=as_json,
    )
    launched = launch(client, client.rollout, spec)
    about = f"{len(launched.stages)} stages, beginning with {launched.stages[0].name}"
    _print(client, launched, about, (), watch=watch, as_json=as_json)


def _print(
    client: Client,
    launched: Sweep | Rollout,
    about: str,
    warnings: Sequence[str],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Print what was recorded, and with ``watch`` its progress until it ends."""
    if as_json:
        print_json({launched.noun: launched.detail})
    else:
        console().print(f"[bold]{launched.name}[/]  {launched.id}  {about}")
        print_warnings(warnings)
        print_next(launched, watch=watch)
    if watch and not watch_until_end(client, launched, as_json=as_json):
        raise typer.Exit(1)
