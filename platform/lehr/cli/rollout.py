"""``lehr rollout``: plan, confirm, launch."""

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
    show_plan,
)
from lehr.cli.watch import watch_until_end

app = typer.Typer(rich_markup_mode=None)


@app.command("rollout")
def rollout(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
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
    if as_json:
        print_json({"rollout": launched.detail})
    else:
        out = console()
        made = launched.stages
        begins = f"{len(made)} stages, beginning with {made[0].name}"
        out.print(f"[bold]{launched.name}[/]  {launched.id}  {begins}")
        print_next(launched, watch=watch)
    if watch and not watch_until_end(client, launched, as_json=as_json):
        raise typer.Exit(1)
