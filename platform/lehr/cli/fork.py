"""``lehr fork``: start a new run from another run's checkpoint, with changes."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import Ref, connect
from lehr.cli.launch import WatchOption, recorded
from lehr.cli.output import (
    JsonOption,
    console,
    escaped,
    print_json,
    state_text,
)
from lehr.cli.plan import print_warnings
from lehr.cli.watch import watch_until_end
from lehr.errors import UserError

app = typer.Typer(rich_markup_mode=None)


@app.command("fork")
def fork(
    ref: Ref,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH=VALUE]...",
            help="Change a field of the spec, e.g. train.optimizer.lr=1e-3",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="Step of the checkpoint. Default: the newest."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new run. Default: NAME-fork-STEP.")
    ] = None,
    code: Annotated[
        str,
        typer.Option(
            "--code",
            metavar="same|current",
            help="Train with the code of the source run (same), or with the code on this machine "
            "(current).",
        ),
    ] = "same",
    optimizer_state: Annotated[
        str,
        typer.Option(
            "--optimizer-state",
            metavar="keep|fresh",
            help="Continue the checkpoint's optimizer (keep), or start one without state (fresh), "
            "as another optimizer must.",
        ),
    ] = "keep",
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new run from a checkpoint of another run, with changes.

    The new run takes weights, optimizer state and step count from the checkpoint. If the changes
    include a warmup, it starts at the checkpoint. To rescue a run that diverged, halve the LR, warm
    up briefly and raise the minimum: lehr fork RUN --step 15000 train.optimizer.lr=1.5e-4
    train.schedule.warmup_steps=200 train.schedule.min_lr_ratio=0.2

    JSON: {run: RunDetail}.
    """
    if code not in {"same", "current"}:
        raise UserError(f"--code is {code!r}; it must be same or current.")
    if optimizer_state not in {"keep", "fresh"}:
        raise UserError(f"--optimizer-state is {optimizer_state!r}; it must be keep or fresh.")
    client = connect()
    source = client.run(ref)
    given = [*(changes or []), *([f"name={name}"] if name else [])]
    run = recorded(
        lambda: source.fork(
            step=step,
            changes=given,
            code="current" if code == "current" else "same",
            optimizer_state="fresh" if optimizer_state == "fresh" else "keep",
        )
    )
    if as_json:
        print_json({"run": run.detail})
    else:
        out = console()
        origin = run.detail.provenance["fork"]
        out.print(f"[bold]{escaped(run.name)}[/]  {run.id}  {state_text(run.state)}")
        out.print(
            f"  continues from step {origin['step']:,} of {escaped(source.name)} ({source.id})"
        )
        starts = ((run.detail.spec.get("train") or {}).get("schedule") or {}).get("starts_after")
        if starts == origin["step"] and starts:
            out.print(f"  its schedule restarts after step {starts:,}")
        print_warnings(run.detail.warnings)
        out.print(f"  {run.url}", style="dim")
        if not watch:
            out.print(f"  Watch it: lehr watch {run.id}", style="dim")
    if watch and not watch_until_end(client, run, as_json=as_json):
        raise typer.Exit(1)
