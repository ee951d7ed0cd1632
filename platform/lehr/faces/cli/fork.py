"""``lehr fork``, ``cooldown`` and ``seeds``: new runs from a run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lehr.base import formats
from lehr.faces.cli.connect import ActRef, Ref, connect
from lehr.faces.cli.launch import (
    DryRunOption,
    WatchOption,
    check,
    nothing_recorded,
    recorded,
    show_launched,
)
from lehr.faces.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    console,
    escaped,
    print_json,
    state_text,
    warn,
)

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


@app.command("cooldown")
def cooldown(
    ref: Ref,
    tokens: Annotated[
        str, typer.Option(help="Tokens to train on after the checkpoint, e.g. 2B or 300M.")
    ],
    at: Annotated[
        int | None, typer.Option(min=1, help="Step of the checkpoint. Default: the newest.")
    ] = None,
    to: Annotated[
        float, typer.Option(help="Rate at the last step, as a share of the rate at the checkpoint.")
    ] = 0.0,
    shape: Annotated[
        Literal["linear", "sqrt"],
        typer.Option(help="Shape of the decay: linear, or sqrt (1 - sqrt of the share done)."),
    ] = "linear",
    name: Annotated[
        str | None, typer.Option(help="Name of the new run. Default: NAME-cooldown-TOKENS.")
    ] = None,
    below_peak: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Also from a checkpoint where the rate is not at its peak: the decay begins from "
            "the rate there.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start the last stage of a warmup-stable-decay run, once or at several budgets.

    It forks the run at a checkpoint and decays its learning rate over so many tokens, without a
    warmup. Data order, validation and checkpoints stay as they are. The trunk does not change, so
    lehr compare --x end of several cooldowns shows what a longer one is worth.

    JSON: {run: RunDetail}; with --dry-run the JSON of `lehr plan --json` for the steps after the
    checkpoint, and cooldown: {step, steps, tokens, rate, last_rate, changes}.
    """
    from lehr.analysis.plan_json import spec_json
    from lehr.faces.cli.plan_text import plan_text
    from lehr.faces.client.plan_server import PlanServer

    client = connect()
    source = client.run(ref)
    planned = source.plan_cooldown(
        tokens, at=at, to=to, shape=shape, name=name, below_peak=below_peak
    )
    server = PlanServer(lambda: client)
    plan, refused = server.plan(planned.alone)
    if refused is not None:
        raise nothing_recorded(refused)
    last = planned.spec.own.steps
    at_peak = "" if planned.share > 0.9995 else f", {planned.share:.1%} of the peak"
    trained = f"{formats.counted(planned.steps, 'step')}, {formats.millions(planned.tokens)} tokens"
    rate = f"learning rate {planned.rate:.2g} at step {planned.step:,}{at_peak}"
    lines = [
        f"continues from step {planned.step:,} of {escaped(source.name)} ({source.id})",
        f"{trained}; {formats.millions(planned.spec.own.total_tokens)} with those before",
        f"{rate}; {planned.last_rate:.2g} at step {last:,}",
    ]
    if dry_run:
        warnings = check(planned.spec)
        if as_json:
            names = ("step", "steps", "tokens", "rate", "last_rate", "changes")
            cooled = {name: getattr(planned, name) for name in names}
            print_json({**spec_json(plan, server.cluster), "cooldown": cooled})
            return
        console().print("\n".join([plan_text(plan, server.cluster), *(f"  {x}" for x in lines)]))
        for warning in warnings:
            warn(warning)
        return
    run = recorded(lambda: source.fork(planned.step, planned.changes))
    hours, basis = plan.runs[0][1].gpu_hours, plan.runs[0][1].basis
    lines.append(escaped(f"{formats.gpu_hours(hours)}, {basis}" if hours is not None else basis))
    about, notes = state_text(run.state), run.detail.warnings
    show_launched(client, run, about, notes, lines=lines, watch=watch, as_json=as_json)


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
        cost, time = run.detail.cost, ""
        if run.state == "completed" and cost is not None:
            hours = n * cost.gpu_hours
            shown = f"about {formats.si(hours)}" if hours >= 0.1 else "under 0.1"
            time = f", {shown} GPU-hours"
        confirm(f"Queue {formats.counted(n, 'run')} like {run.name} ({run.id}){time}?")
    made = recorded(lambda: run.seeds(n))
    runs = formats.counted(sum(made.view.counts.values()), "run")
    # Of a program it is the argument that is its seed.
    listed = ", ".join(str(*trial.parameters.values()) for trial in made.trials)
    lines = [f"seeds {listed}"]
    then = f"When they have ended: lehr compare {run.id} {made.id} OTHER"
    show_launched(
        client, made, f"{runs} queued", lines=lines, then=then, watch=watch, as_json=as_json
    )
