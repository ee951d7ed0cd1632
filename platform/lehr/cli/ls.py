"""``lehr ls``: runs, sweeps and rollouts, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import formats
from lehr.cli.connect import connect
from lehr.cli.output import (
    Json,
    console,
    notes,
    plain,
    print_json,
    state_text,
    table,
    unicode_safe,
    words,
)
from lehr.cli.rollout_table import styled

if TYPE_CHECKING:
    from lehr.views import RolloutView, RunView, SweepView

app = typer.Typer(rich_markup_mode=None)


@app.command("ls")
def ls(
    search: Annotated[str | None, typer.Argument(help="A part of the name.")] = None,
    project: Annotated[str | None, typer.Option("--project", "-p", help="Of this one.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="E.g. running; may be repeated.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="With it.")] = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="Runs of this sweep.")] = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Sweeps, not runs.")] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="Rollouts, not runs.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones too.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 30,
    as_json: Json = False,
) -> None:
    """Runs, newest first.

    JSON: {runs: [RunView]}, with --sweeps {sweeps: [SweepView]}, with --rollouts {rollouts:
    [RolloutView]}.
    """
    client = connect()
    if rollouts:
        views = [one.view for one in client.rollouts(project=project, limit=limit)]
        views = [view for view in views if search is None or search in view.name]
        if as_json:
            print_json({"rollouts": plain(views)})
        else:
            _print_rollouts(views)
        return
    if sweeps:
        found = [sweep_.view for sweep_ in client.sweeps(project=project, limit=limit)]
        if search:
            found = [view for view in found if search in view.name]
        if as_json:
            print_json({"sweeps": plain(found)})
        else:
            _print_sweeps(found)
        return
    if sweep is not None:
        sweep = client.find_sweep(sweep).id
    runs = [
        run.view
        for run in client.runs(
            project=project,
            states=state,
            tag=tag,
            sweep=sweep,
            search=search,
            archived=archived,
            limit=limit + 1,
        )
    ]
    if as_json:
        print_json({"runs": plain(runs[:limit])})
        return
    _print_runs(runs[:limit])
    if len(runs) > limit:
        notes().print(f"[dim]There are more: lehr ls -n {limit * 4}[/]")


def _print_runs(runs: list[RunView]) -> None:
    if not runs:
        notes().print("No runs. The first ones: lehr demo, or lehr submit run.yaml")
        return
    has_mfu = any("mfu" in run.latest for run in runs)
    several = len({run.project for run in runs}) > 1
    columns = ["id", "name", *(["project"] if several else [])]
    columns += ["state", "step", "loss", "trend", "val", "tok/s"]
    columns += ["MFU"] if has_mfu else []
    columns += ["ETA", "age"]
    right = ("step", "loss", "val", "tok/s", "MFU", "ETA", "age")
    rows = table(*columns, right=right)
    for run in runs:
        latest = {name: value.value for name, value in run.latest.items()}
        cells = [
            run.id,
            run.name,
            *([run.project] if several else []),
            state_text(run.state),
            f"{formats.count(run.step)}/{formats.count(run.total_steps)}",
            formats.loss(latest.get("train/loss")),
            formats.sparkline(run.trend, unicode=unicode_safe()),
            formats.loss(latest.get("val/loss")),
            formats.si(latest.get("tokens_per_s")),
        ]
        cells += [formats.share(latest.get("mfu"))] if has_mfu else []
        active = run.state in {"running", "starting"}
        cells += [formats.duration(run.eta_s) if active else "", formats.ago(run.created_at)[:-4]]
        rows.add_row(*cells)
    console().print(rows)


def _print_sweeps(sweeps: list[SweepView]) -> None:
    if not sweeps:
        notes().print("No sweeps. The first one: lehr demo, or lehr sweep sweeps/lr_grid.yaml")
        return
    rows = table("id", "name", "state", "runs", "over", "best", "at", "age", right=("age",))
    for sweep in sweeps:
        best = sweep.best_parameters or {}
        runs = ", ".join(f"{number} {state}" for state, number in sweep.counts.items() if number)
        rows.add_row(
            sweep.id,
            sweep.name,
            sweep.state,
            runs,
            ", ".join(formats.short_paths(sweep.parameters)),
            formats.loss(sweep.best_value),
            "different held-out sets"
            if sweep.held_out == "different"
            else words(", ".join(formats.parameter(v, path) for path, v in best.items()))
            or formats.NOTHING,
            formats.ago(sweep.created_at)[:-4],
        )
    console().print(rows)


def _print_rollouts(rollouts: list[RolloutView]) -> None:
    if not rollouts:
        notes().print("No rollouts. The first one: lehr rollout sweeps/rollout_small.yaml")
        return
    rows = table("id", "name", "state", "stage", "age", right=("age",))
    rows.add_column("why", overflow="fold")
    for one in rollouts:
        rows.add_row(
            one.id,
            one.name,
            styled(one.state),
            one.stage or "",
            formats.ago(one.created_at)[:-4],
            words(one.reason or ""),
        )
    console().print(rows)
