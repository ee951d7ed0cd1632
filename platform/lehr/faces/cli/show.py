"""``lehr show``: all details of a run, a sweep or a rollout."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.checkpoints import checkpoints_table
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.group_table import (
    SPARE,
    gates_table,
    headline,
    rollout_headline,
    stages_table,
    trials_table,
    why,
)
from lehr.faces.cli.live import run_lines
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    fitting,
    print_alert,
    print_json,
    table,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lehr.faces.client import Rollout, Run, Sweep
    from lehr.schemas.campaigns import CampaignView
    from lehr.schemas.runs import RunDetail, WandbView
    from lehr.schemas.streams import EventView

app = typer.Typer(rich_markup_mode=None)
_LAST_EVENTS = 12
_STEPS = 8  # Of a campaign's course.
_AT_WORK = frozenset({"starting", "running", "stopping"})


@app.command("show")
def show(
    ref: Ref,
    rollout: Annotated[
        bool, typer.Option("--rollout", help="Print the rollout that a campaign recommends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show all details of a run, sweep or rollout.

    JSON: {sweep: SweepDetail, importance: {path: share}}, {rollout: RolloutDetail} or
    {run: RunDetail, checkpoints: [...], events: [...]}.
    """
    from lehr.faces.client import Rollout, Run, Sweep

    shown = connect().find_any(ref)
    if rollout:
        sweep = connect().find_sweep(ref)
        if (text := sweep.campaign().rollout) is None:
            raise UserError(f"{sweep.name} does not know enough of its target yet.")
        console().print(text, markup=False, highlight=False, soft_wrap=True, end="")
    elif as_json:
        more: dict[str, Any] = {}
        if isinstance(shown, Sweep):
            more = {"importance": shown.importance()}
        elif isinstance(shown, Run):
            more = {"checkpoints": shown.checkpoints(), "events": shown.events()}
        print_json({shown.noun: shown.detail, **more})
    elif isinstance(shown, Rollout):
        print_rollout(shown)
    elif isinstance(shown, Sweep):
        print_sweep(shown)
    else:
        _print_run(shown)


def print_sweep(sweep: Sweep) -> None:
    view = sweep.detail
    out = console()
    out.print(headline(view))
    rule = view.spec.get("pruning")
    campaign = sweep.campaign(_STEPS) if view.method == "campaign" else None
    over = ", ".join(campaign.decide if campaign else view.parameters)
    how = f"{view.method} over {over}   {view.metric}, {view.goal}"
    pruned = f"   pruned by {rule['name']} from step {rule['min_steps']:,}" if rule else ""
    out.print(f"  {view.id}   {how}{pruned}", style="dim")
    for name, text in campaign.facts if campaign else ():
        out.print(f"  [bold]{name}[/]: {escaped(text)}", highlight=False)
    _print_note(view.note)
    if view.held_out_note:
        warn(view.held_out_note)
    for warning in view.warnings:
        warn(warning)
    out.print()
    if campaign is None:
        out.print(fitting(trials_table(view), out, fold="state", spare=SPARE))
    else:
        _print_course(campaign)
    out.print()
    for note in view.notes:
        if note != view.held_out_note:
            out.print(f"  {note}", markup=False)
    shares = sweep.importance() if len(view.parameters) > 1 else {}
    if shares:
        names = formats.short_paths(list(shares))
        parts = (f"{n} {formats.share(s)}" for n, s in zip(names, shares.values(), strict=True))
        out.print(f"  importance: {', '.join(parts)}", markup=False)
    if campaign is None and (view.spec.get("pruning") or {}).get("name") == "forecast":
        out.print(f"  {sweep.audit().text}", markup=False)
    if view.cost is not None:
        out.print(f"  {view.cost.text}", markup=False)
    out.print(f"  {sweep.url}", style="dim")


def _print_course(view: CampaignView) -> None:
    """Print what a campaign has tried, a line for each rung, and how its answer has narrowed."""
    head, *rows = view.rung_table
    rungs = table(*head, right=("trials", view.metric, "GPU-hours"))
    for row in rows:
        rungs.add_row(*map(escaped, row))
    console().print(fitting(rungs, console(), fold="tried"))
    for step in view.course:
        after = f"{step.trials} trials, {step.hours:.2g} GPU-hours"
        console().print(f"  after {after}: {escaped(step.text)}", highlight=False)
    console().print(f"  Its trials: lehr ls --sweep {view.sweep_id}", style="dim")


def _print_note(note: str) -> None:
    """Print the text that people wrote, indented."""
    for line in note.splitlines():
        console().print(f"  {escaped(line)}")


def print_rollout(rollout: Rollout) -> None:
    view = rollout.detail
    out = console()
    out.print(rollout_headline(view))
    text = why(view)
    if text is not None:
        out.print(f"  {text}", markup=False)
    _print_note(view.note)
    out.print()
    out.print(stages_table(view, out))
    out.print()
    out.print(gates_table(view))
    for note in view.notes:
        out.print(f"  {note}", markup=False)
    if view.cost is not None:
        out.print(f"  {view.cost.text}", markup=False)
    out.print(f"  {rollout.url}", style="dim")


def _print_run(run: Run) -> None:
    from lehr.schemas.streams import unexplained

    view = run.detail
    out = console()
    for line in run_lines(view, time.time()):
        out.print(line)
    out.print()
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(view):
        facts.add_row(f"[dim]{name}[/]", escaped(value))
    out.print(fitting(facts, out, fold=""))
    if view.alerts or view.warnings:
        out.print()
    for text in (*view.warnings, *unexplained(view.alerts, view.diagnosis)):
        warn(text)
    for alert in view.diagnosis:
        print_alert(alert)
    checkpoints = [point for point in run.checkpoints() if point.removed_at is None]
    if checkpoints:
        out.print("\ncheckpoints")
        out.print(checkpoints_table(checkpoints, out))
    events = run.events()
    if events:
        shown = relevant_events(events)
        out.print(
            "\nevents" if len(shown) == len(events) else f"\n{len(shown)} of {len(events)} events"
        )
        rows = table("when", "attempt", "step", "what", right=("attempt", "step"))
        for event in shown:
            step = "" if event.step is None else formats.count(event.step)
            rows.add_row(formats.ago(event.at), str(event.attempt), step, escaped(event.message))
        out.print(fitting(rows, out, fold="what"))
    out.print(f"\n  {run.url}", style="dim")
    out.print(
        f"  Output: lehr logs {view.id}        All details: lehr show {view.id} --json", style="dim"
    )


def relevant_events(events: Sequence[EventView]) -> list[EventView]:
    """Select the newest events and, however old, why attempts were lost or failed.

    Deleted checkpoints are left out: the list of checkpoints shows them, and they would push a lost
    attempt out of sight within a minute. For the same reason other events come before checkpoints.
    """
    worth = [e for e in events if e.kind != "checkpoint_removed"]
    by_worth = sorted(range(len(worth)), key=lambda i: (worth[i].kind != "checkpoint", i))
    recent = {*by_worth[-_LAST_EVENTS:]}
    return [e for i, e in enumerate(worth) if i in recent or _ended_badly(e)]


def _ended_badly(event: EventView) -> bool:
    if event.kind != "transition":
        return False
    begun_again = event.data["to"] == "queued" and event.data["from"] in _AT_WORK
    return begun_again or event.data["to"] == "failed"


def mirror_text(mirror: WandbView | None) -> str:
    """Return the state of a mirror, with its page or its folder for ``wandb sync``."""
    if mirror is None:
        return ""
    where = mirror.url or mirror.folder or ""
    return mirror.text if where in mirror.text else f"{mirror.text}   {where}"


def _settings(values: Mapping[str, Any]) -> str:
    return formats.listed([f"{k}={formats.parameter(v, k)}" for k, v in values.items()], 12)


def _facts(view: RunDetail) -> list[tuple[str, str]]:
    from lehr.specs.stored import StoredSpec

    git = view.provenance.get("git") or {}
    commit = str(git.get("commit") or "")[:12]
    spec = StoredSpec(view.spec)
    seed, without = spec.seed, "none of Lehr's" if spec.external else "none: a node's CPU"
    gpus = f"{view.gpus} x {view.gpu_type or 'any GPU'}" if view.gpus else without
    places = ", ".join(f"{gpu.node}:{gpu.gpu}" for gpu in view.placement)
    evaluated = Counter(f"{one.name} {one.state}" for one in view.evaluations)
    facts = [
        ("project", view.project),
        ("tags", ", ".join(view.tags)),
        ("note", view.note),
        ("claim", view.spec.get("hypothesis") or ""),
        ("model", f"{formats.millions(view.parameters)} parameters" if view.parameters else ""),
        # A program need not declare its tokens: then each step counts as one.
        (
            "tokens",
            f"{view.tokens_per_step:,} a step"
            if view.tokens_per_step > 1 and not view.stages
            else "",
        ),
        *((f"stage {stage.name}", stage.text) for stage in view.stages),
        ("arguments", _settings((view.spec.get("trainer") or {}).get("args") or {})),
        ("config", _settings(view.logged_config)),
        ("seed", "" if seed is None else str(seed)),
        ("validation", view.held_out or ""),
        ("varied", _settings(view.parameters_varied)),
        ("resources", f"{gpus}{f' on {places}' if places else ''}"),
        ("device", view.device or ""),
        ("attempts", str(view.attempt)),
        ("evaluations", ", ".join(f"{n} {what}" for what, n in evaluated.items())),
        ("forecast", view.forecast.text if view.forecast else ""),
        ("cost", view.cost.text if view.cost else ""),
        ("W&B", mirror_text(view.wandb)),
        ("submitted", f"{formats.ago(view.created_at)} by {view.submitted_by}"),
        ("commit", f"{commit}{' + changes' if git.get('dirty') else ''}" if commit else ""),
    ]
    return [(name, value) for name, value in facts if value and value != formats.NOTHING]
