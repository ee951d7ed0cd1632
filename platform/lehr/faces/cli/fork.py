"""``lehr fork`` and ``lehr seeds``: new runs from a run, with changes or with other seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import ActRef, Ref, connect
from lehr.faces.cli.launch import WatchOption, recorded
from lehr.faces.cli.output import (
    JsonOption,
    YesOption,
    console,
    escaped,
    print_json,
    state_text,
)
from lehr.faces.cli.plan import print_warnings
from lehr.faces.cli.run_actions import confirm
from lehr.faces.cli.watch import watch_until_end

if TYPE_CHECKING:
    from lehr.faces.client import Run

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


@app.command("seeds")
def seeds(
    ref: ActRef,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of runs to add, 1 to 20.")] = 3,
    yes: YesOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show their progress until they end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run with new seeds, as a sweep over train.seed, or over the seed of a program.

    Shows the noise between seeds. When its runs have ended, compare the run and its repetitions
    with other runs: lehr compare RUN RUN-seeds OTHER. The comparison then shows whether a
    difference is more than this noise. The seeds of a trial count for its point in its own sweep.

    JSON: {sweep: SweepDetail}. --json skips the confirmation.
    """
    client = connect()
    run = client.run(ref, "seeds")
    if not as_json and not yes and n >= 1:
        confirm(f"Queue {formats.counted(n, 'run')} like {run.name} ({run.id}){_time(run, n)}?")
    made = recorded(lambda: run.seeds(n))
    if as_json:
        print_json({"sweep": made.detail})
    else:
        out = console()
        runs = formats.counted(sum(made.view.counts.values()), "run")
        out.print(f"[bold]{escaped(made.name)}[/]  {made.id}  {runs} queued")
        # Of a program it is the argument that is its seed.
        listed = ", ".join(str(*trial.parameters.values()) for trial in made.trials)
        out.print(f"  seeds {listed}")
        out.print(f"  {made.url}", style="dim")
        out.print(f"  When they have ended: lehr compare {run.id} {made.id} OTHER", style="dim")
    if watch and not watch_until_end(client, made, as_json=as_json):
        raise typer.Exit(1)


def _time(run: Run, n: int) -> str:
    """Return the GPU-hours that they will need, if the run has ended completely."""
    cost = run.detail.cost
    if run.state != "completed" or cost is None:
        return ""
    hours = n * cost.gpu_hours
    return f", about {formats.si(hours)} GPU-hours" if hours >= 0.1 else ", under 0.1 GPU-hours"
