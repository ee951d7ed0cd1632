"""``lehr fork``: go on from a run's checkpoint with something changed."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import Ref, connect
from lehr.cli.output import Json, console, plain, print_json, state_text, words
from lehr.cli.watch import watch_until_end

app = typer.Typer(rich_markup_mode=None)


@app.command("fork")
def fork(
    ref: Ref,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH=VALUE]...", help="E.g. train.optimizer.lr=1e-3"),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="Of the checkpoint; the newest if not given."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the new run; else NAME-fork-STEP.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay and watch it.")] = False,
    as_json: Json = False,
) -> None:
    """A new run that goes on from a checkpoint of another, with something changed.

    Weights, optimizer state and step count are the checkpoint's. A new warmup begins there. To
    rescue a run that turned bad: half the LR, a short warmup, a higher floor:
    lehr fork RUN --step 15000 train.optimizer.lr=1.5e-4 train.schedule.warmup_steps=200
    train.schedule.min_lr_ratio=0.2

    JSON: {run: RunDetail}.
    """
    client = connect()
    source = client.run(ref)
    given = [*(changes or []), *([f"name={name}"] if name else [])]
    run = source.fork(step=step, changes=given)
    if as_json:
        print_json({"run": plain(run.detail)})
    else:
        out = console()
        origin = run.detail.provenance["fork"]
        out.print(f"[bold]{words(run.name)}[/]  {run.id}  {state_text(run.state)}")
        out.print(f"  goes on from step {origin['step']:,} of {words(source.name)} ({source.id})")
        starts = run.detail.spec["train"]["schedule"].get("starts_after")
        if starts == origin["step"] and starts:
            out.print(f"  its schedule begins anew after step {starts:,}")
        out.print(f"  {run.url}", style="dim")
        if not watch:
            out.print(f"  Watch it: lehr watch {run.id}", style="dim")
    if watch and not watch_until_end(client, run, as_json=as_json):
        raise typer.Exit(1)
