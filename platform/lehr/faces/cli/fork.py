"""``lehr fork`` and ``lehr seeds``: new runs from a run, with changes or with other seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lehr.base import formats
from lehr.faces.cli.connect import ActRef, Ref, connect
from lehr.faces.cli.launch import WatchOption, recorded, show_launched
from lehr.faces.cli.output import JsonOption, YesOption, confirm, escaped, state_text

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
        int | None, typer.Option(min=0, help="Step of the checkpoint. Default: the newest.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new run. Default: NAME-fork-STEP.")
    ] = None,
    code: Annotated[
        Literal["same", "current"],
        typer.Option(
            "--code",
            help="Train with the code of the source run (same), or with the code on this machine "
            "(current).",
        ),
    ] = "same",
    optimizer_state: Annotated[
        Literal["keep", "fresh"],
        typer.Option(
            "--optimizer-state",
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
    client = connect()
    source = client.run(ref)
    changes_ = [*(changes or []), *([f"name={name}"] if name else [])]
    run = recorded(
        lambda: source.fork(step=step, changes=changes_, code=code, optimizer_state=optimizer_state)
    )
    origin = run.detail.provenance["fork"]
    lines = [f"continues from step {origin['step']:,} of {escaped(source.name)} ({source.id})"]
    starts = ((run.detail.spec.get("train") or {}).get("schedule") or {}).get("starts_after")
    if starts == origin["step"] and starts:
        lines.append(f"its schedule restarts after step {starts:,}")
    about, warnings = state_text(run.state), run.detail.warnings
    show_launched(client, run, about, warnings, lines=lines, watch=watch, as_json=as_json)


@app.command("seeds")
def seeds(
    ref: ActRef,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of runs to add, 1 to 20.")] = 3,
    yes: YesOption = False,
    watch: WatchOption = False,
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
    runs = formats.counted(sum(made.view.counts.values()), "run")
    # Of a program it is the argument that is its seed.
    listed = ", ".join(str(*trial.parameters.values()) for trial in made.trials)
    lines = [f"seeds {listed}"]
    then = f"When they have ended: lehr compare {run.id} {made.id} OTHER"
    show_launched(
        client, made, f"{runs} queued", lines=lines, then=then, watch=watch, as_json=as_json
    )


def _time(run: Run, n: int) -> str:
    """Return the GPU-hours that they will need, if the run has ended completely."""
    cost = run.detail.cost
    if run.state != "completed" or cost is None:
        return ""
    hours = n * cost.gpu_hours
    return f", about {formats.si(hours)} GPU-hours" if hours >= 0.1 else ", under 0.1 GPU-hours"
