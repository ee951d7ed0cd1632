"""``lehr ls``: list runs, sweeps and rollouts, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.base import formats
from lehr.base.names import is_rate, is_seed
from lehr.faces.cli.connect import connect
from lehr.faces.cli.group_table import styled
from lehr.faces.cli.output import (
    JsonOption,
    escaped,
    notes,
    print_fitting,
    print_json,
    state_text,
    table,
    unicode_safe,
)

if TYPE_CHECKING:
    from lehr.faces.client import Client
    from lehr.schemas.rollouts import RolloutView
    from lehr.schemas.runs import RunView
    from lehr.schemas.sweeps import SweepView

app = typer.Typer(rich_markup_mode=None)
_TRAINS = frozenset({"running", "starting"})
_ASKED = 200
"""Runs whose settings one request asks for."""
_SETTINGS = 3
_NONE = {repr(None)}


@app.command("ls")
def ls(
    search: Annotated[
        str | None, typer.Argument(help="Show only names that contain this text.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="Only runs in this project.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", "-s", help="Only runs in this state, e.g. running. May be repeated."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Only runs with this tag.")] = None,
    note: Annotated[
        str | None, typer.Option(help="Only entries whose note contains this text.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="Only runs of this sweep.")] = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="List sweeps instead of runs.")] = False,
    rollouts: Annotated[
        bool, typer.Option("--rollouts", help="List rollouts instead of runs.")
    ] = False,
    archived: Annotated[bool, typer.Option("--archived", help="List archived runs.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Sort all runs that match by a metric, a setting or a column, such as val, "
            "best:val/loss, lr or hours: the lowest first. -val: the highest first.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")
    ] = 30,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first, with the settings that tell them apart.

    JSON: {runs: [RunView]}, with --sweeps {sweeps: [SweepView]}, with --rollouts {rollouts:
    [RolloutView]}.
    """
    client = connect()
    if rollouts or sweeps:
        noun = "rollout" if rollouts else "sweep"
        listed = client.rollouts if rollouts else client.sweeps
        groups = listed(project=project, note=note, limit=limit)
        views: list[Any] = [group.view for group in groups if (search or "") in group.name]
        if as_json:
            print_json({f"{noun}s": views})
        elif views:
            (_print_rollouts if rollouts else _print_sweeps)(views)
        elif search or project or note:
            notes().print(f"No {noun} matches. All {noun}s: lehr ls --{noun}s")
        else:
            notes().print(f"No {noun}s. Create one: lehr spec new {noun}, then lehr {noun} FILE")
        return
    of_sweep = client.find_sweep(sweep) if sweep is not None else None

    runs = [
        run.view
        for run in client.runs(
            project=project,
            states=state,
            tag=tag,
            sweep=None if of_sweep is None else of_sweep.id,
            search=search,
            note=note,
            archived=archived,
            sort=sort,
            limit=limit + 1,
        )
    ]
    if as_json:
        print_json({"runs": runs[:limit]})
        return
    if not runs:
        key, colon, value = (search or "").partition(":")
        if colon and key in {"tag", "state", "project", "note", "sweep"}:
            notes().print(f"No name contains {search}. Try: lehr ls --{key} {value}")
        elif project or state or tag or sweep or search or note or archived:
            notes().print("No run matches. All runs: lehr ls   Archived ones: lehr ls --archived")
        else:
            notes().print("No runs. Create some: lehr demo, or lehr spec new")
        return
    _print_runs(runs[:limit], _configs(client, runs[:limit]))
    if len(runs) > limit:
        notes().print(f"[dim]More exist. Show them: lehr ls -n {limit * 4}[/]")


def _configs(client: Client, runs: Sequence[RunView]) -> dict[str, dict[str, Any]]:
    """Return the settings of the first runs by dotted path, by their ids."""
    from lehr.schemas.runs import RunValuesView

    query = {"run": [run.id for run in runs[:_ASKED]]}
    answer = RunValuesView.model_validate_json(client.transport.get("/values", query))
    return {
        run_id: {path: values[n] for path, values in answer.differing.items()}
        for n, run_id in enumerate(answer.runs)
    }


def _separating(runs: Sequence[RunView], configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the few settings that tell these runs apart best; of equal ones what sweeps vary."""
    from lehr.analysis.compare import is_factor

    varied = {path for run in runs for path in run.parameters_varied}
    factors = {p for config in configs.values() for p in config if is_factor(p)} - {"train.steps"}
    paths = [*sorted(varied), *sorted(p for p in factors - varied if not p.startswith("code."))]
    chosen: list[str] = []

    def groups(path: str) -> int:
        if (
            path not in varied
            and len({repr(_value(one, path)) for one in configs.values()} - _NONE) < 2
        ):
            path = ""  # It tells only which runs have it, such as those of Lehr's trainer.
        return len({repr([_value(one, p) for p in (*chosen, path)]) for one in configs.values()})

    for _ in range(_SETTINGS):
        best = max(paths, key=groups, default="")
        if groups(best) > groups(""):
            chosen.append(best)
    return chosen


def _value(config: Mapping[str, Any], path: str) -> Any:
    """Return a setting of a run; a learning rate or seed under whatever path the run has it."""
    value = config.get(path)
    for alike in (is_rate, is_seed):
        if value is None and alike(path):
            value = next((v for p, v in config.items() if v is not None and alike(p)), None)
    return value


def _print_runs(runs: list[RunView], configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table of runs with the settings that tell them apart."""
    paths = _separating(runs, configs)
    settings = formats.short_paths(paths)
    several = len({run.project for run in runs}) > 1
    right = ["step", "loss", "val", "tok/s", "MFU", "ETA", "age"]
    for name, path in zip(settings, paths, strict=True):
        values = [_value(configs.get(run.id, {}), path) for run in runs]
        right += [name] if not any(isinstance(v, str | bool | list) for v in values) else []
    columns = ["id", "name", "project", *settings, "state", "step", "loss", "trend", "val"]
    rows = table(*columns, "tok/s", "MFU", "ETA", "age", "reason", right=tuple(right))
    for run in runs:
        latest = run.newest
        own = configs.get(run.id, {})
        rows.add_row(
            run.id,
            run.name,
            run.project if several else "",
            *(escaped(formats.parameter(_value(own, p), p)) for p in paths),
            state_text(run.state),
            _steps(run),
            formats.loss(latest.get("train/loss")),
            formats.sparkline(run.trend, unicode=unicode_safe()),
            formats.loss(latest.get("val/loss")),
            formats.si(latest.get("tokens_per_s")),
            formats.share(latest.get("mfu")),
            formats.duration(run.eta_s) if run.state in _TRAINS else "",
            formats.ago(run.created_at).removesuffix(" ago"),
            escaped(run.reason or "") if run.state == "failed" else "",
        )
    spare = ["trend", "MFU", "tok/s", "project", "age", "ETA", *reversed(settings), "reason"]
    if any(run.state != "failed" for run in runs):
        spare.insert(0, "reason")
    print_fitting(rows, fold=("name", "reason"), spare=spare)


def _steps(run: RunView) -> str:
    step = formats.count(run.step)
    return f"{step}/{run.total_steps:,}" if run.total_steps else step


def _print_sweeps(sweeps: list[SweepView]) -> None:
    rows = table("id", "name", "state", "runs", "over", "best", "at", "age", right=("best", "age"))
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
            else escaped(", ".join(formats.parameter(v, path) for path, v in best.items()))
            or formats.NOTHING,
            formats.ago(sweep.created_at).removesuffix(" ago"),
        )
    print_fitting(rows, fold="name", spare=["age", "over", "state"])


def _print_rollouts(rollouts: list[RolloutView]) -> None:
    rows = table("id", "name", "state", "stage", "age", "why", right=("age",))
    for one in rollouts:
        age = formats.ago(one.created_at).removesuffix(" ago")
        state, why = styled(one.state), escaped(one.reason or "")
        rows.add_row(one.id, one.name, state, one.stage or "", age, why)
    print_fitting(rows, fold="why", spare=("why",))
