"""The live display of ``lehr watch``: one frame of a sweep or a run, redrawn in place.

Frames are pure functions of views, so tests can draw them. ``watch`` fetches and refreshes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lehr.base import formats
from lehr.faces.cli.group_table import DONE, headline, live_table, sweep_eta
from lehr.faces.cli.output import escaped, state_text, unicode_safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, Group
    from rich.text import Text

    from lehr.schemas.cluster import ClusterView, GpuView
    from lehr.schemas.runs import RunView
    from lehr.schemas.streams import EventView
    from lehr.schemas.sweeps import SweepDetail, TrialView

_SILENT_AFTER_S = 4.0
_BAR = 24
_CHART = (56, 8)  # letters across, lines
_NODES = 6
_ALERTS = 3
_EVENTS = 4
_LEAST_TRIALS = 3
_OVER_AND_UNDER = 9
"""Lines of a sweep's frame that are not trials: headings, GPUs and alerts."""
LIVENESS = {
    "unreachable": "its node does not respond; the run may continue",
    "stalled": "alive, but no step for a long time",
}
_SHOWN_KINDS = frozenset({"started", "resumed", "checkpoint", "evaluation", "warning", "notice"})


@dataclass
class LiveState:
    """Data shown beside the view, and when the server last answered."""

    cluster: ClusterView | None = None
    events: list[EventView] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(step, train/loss). Both are set when a single run is watched."""
    heard_at: float = field(default_factory=time.time)


def sweep_frame(view: SweepDetail, seen: LiveState, out: Console, *, now: float) -> Group:
    """Draw a sweep in the size of ``out``; trials that do not fit are counted."""
    from rich.console import Group

    gpus = gpu_map(seen.cluster, {trial.run.id: str(trial.number) for trial in view.trials})
    alerts = _alerts([trial.run for trial in view.trials])
    room = max(out.height - _OVER_AND_UNDER - len(gpus) - len(alerts), _LEAST_TRIALS)
    shown, left_out = fitting(view, room)
    parts = [headline(view), f"  {_sweep_bar(view, now)}"]
    if view.held_out == "different":
        text = f"no best trial: {escaped(view.metric)} was measured on different held-out sets"
        parts.append(f"  [yellow]{text}[/]")
    elif view.best_value is not None:
        parts.append(f"  {_best(view)}")
    table = live_table(view.model_copy(update={"trials": shown}), out)
    below = [f"  [dim]{left_out}[/]"] if left_out else []
    return Group(*parts, "", table, *below, "", *gpus, *alerts, *_silence(seen, now))


def run_frame(view: RunView, seen: LiveState, *, now: float) -> Group:
    """Draw a run: progress, figures, GPUs, newest events and its loss."""
    from rich.console import Group

    lines = run_lines(view, now)
    places = gpu_map(seen.cluster, {view.id: "■" if unicode_safe() else "#"})
    if places and view.placement:
        lines += ["", *places]
    recent = [
        f"  [dim]{formats.ago(event.at, now):>10}[/]  {escaped(_one_line(event.message))}"
        for event in seen.events
        if event.kind in _SHOWN_KINDS and event.message not in view.alerts
    ]
    # Of a low terminal the chart is cut, not what needs a look.
    return Group(
        *lines,
        *_cropped(recent[-_EVENTS:]),
        *_alerts([view]),
        *_silence(seen, now),
        *_chart(seen.curve),
    )


def _chart(curve: Sequence[tuple[float, float]]) -> list[str]:
    """Draw the loss over the steps, with the ends of both axes; nothing without Braille."""
    points = [(step, loss) for step, loss in curve if math.isfinite(loss)]
    if len(points) < 2 or not unicode_safe():
        return []
    losses = [loss for _, loss in points]
    # The first losses are far above the others, which would be one flat line below them.
    most = max(losses[len(losses) // 20 :])
    losses = [min(loss, most) for loss in losses]
    drawn = formats.chart(losses, *_CHART)
    ends = {0: formats.loss(max(losses)), len(drawn) - 1: formats.loss(min(losses))}
    first, last = f"{points[0][0]:,.0f}", f"{points[-1][0]:,.0f}"
    lines = [f"  [dim]{ends.get(i, ''):>8}[/]  {line}" for i, line in enumerate(drawn)]
    return ["", *lines, f"  [dim]{'step':>8}  {first}{last:>{_CHART[0] - len(first)}}[/]"]


def run_lines(view: RunView, now: float) -> list[str]:
    """Return state, progress and figures of a run, as lines of markup."""
    latest = view.newest
    head = f"[bold]{escaped(view.name)}[/]  [dim]{view.id}[/]   "
    lines = [head + state_text(view.state, reason(view) or _launched(view, now))]
    step, total = view.step or 0, view.total_steps
    ended = view.ended_at is not None
    took = None if view.started_at is None else (view.ended_at or now) - view.started_at
    eta = "" if ended or view.eta_s is None else f"   ETA {_until(view.eta_s, now)}"
    if not total:
        lines.append(f"  step {step:,}; the number of its steps is not known")
    else:
        counts = (view.tokens or 0, view.total_tokens)
        tokens = f"   {' of '.join(map(formats.millions, counts))} tokens"
        stage = f"   stage {escaped(view.stage)}" if view.stage else ""
        lines.append(
            f"  {bar(step / total)} {step / total * 100:3.0f} %   step {step:,}/{total:,}"
            f"{tokens if view.tokens_per_step > 1 else ''}{stage}"
        )
    if took is not None and view.state != "paused":
        lines.append(f"  {_clock(took, ended=ended)}{eta}")
    return [*lines, "", *_figures(view, latest)] if latest else lines


def bar(share: float) -> str:
    """Return a bar as markup."""
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    whole, empty = ("━", "─") if unicode_safe() else ("#", "-")
    return f"[green]{whole * full}[/][dim]{empty * (_BAR - full)}[/]"


def reason(run: RunView) -> str | None:
    """Return why the run is in its state; before its first step, what its trainer does."""
    if run.state == "queued":
        return run.pending_reason
    if (found := silence(run)) is not None:
        return found
    if run.state in {"starting", "running"}:
        return run.reason if not run.step else None
    return None if run.state == "completed" else run.reason


def silence(run: RunView) -> str | None:
    """Return why an active run is not what its state says: its training has ended, or is silent."""
    if run.state not in {"starting", "running"}:
        return None
    return run.training_over or LIVENESS.get(run.liveness)


def gpu_map(cluster: ClusterView | None, own: dict[str, str]) -> list[str]:
    """Draw one line per node, one mark per GPU: runs of ``own`` by their mark, others ▪, free ·."""
    if cluster is None or not cluster.nodes:
        return []
    width = max([len(mark) for mark in own.values()], default=1)
    lines = []
    for node in cluster.nodes[:_NODES]:
        marks = " ".join(_mark(gpu, own, width) for gpu in node.gpus)
        busy = sum(gpu.busy for gpu in node.gpus)
        ours = sum(gpu.run_id in own for gpu in node.gpus)
        kind = escaped(node.gpus[0].name) if node.gpus else "no GPU"
        text = f"{busy} of {len(node.gpus)} busy"
        text += f", {ours} here" if busy != ours else ""
        gone = "" if node.alive else "   [red]not reachable[/]"
        gone = "   [dim]has left[/]" if node.left else gone
        lines.append(f"  [dim]GPUs[/] {escaped(node.name)}  {marks}   [dim]{text}, {kind}[/]{gone}")
    if len(cluster.nodes) > _NODES:
        lines.append(f"  [dim]and {len(cluster.nodes) - _NODES} more nodes[/]")
    return lines


def fitting(view: SweepDetail, room: int) -> tuple[list[TrialView], str]:
    """Select the trials that fit, in the sweep's order, and describe what was left out.

    A view of a long sweep has only a part of its trials; the best are always there.
    """
    trials = {trial.number: trial for trial in [*view.trials, *view.best_trials]}
    if sum(view.counts.values()) <= room:
        return [trials[number] for number in sorted(trials)], ""
    kept = sorted(trials.values(), key=_worth)[: max(room - 1, 1)]
    shown = Counter(trial.run.state for trial in kept)
    left_out = {state: count - shown[state] for state, count in view.counts.items()}
    listed = ", ".join(f"{count} {state}" for state, count in left_out.items() if count > 0)
    ordered = sorted(kept, key=lambda trial: trial.number)
    return ordered, f"and {listed}: lehr show lists all"


def _worth(trial: TrialView) -> tuple[int, int, int]:
    order = {"running": 1, "stopping": 1, "starting": 2, "failed": 3, "queued": 5}
    kind = 0 if trial.best else order.get(trial.run.state, 4)
    return (kind, trial.rank or 10**6, trial.number)


def _launched(view: RunView, now: float) -> str | None:
    """Return when the trainer was launched: it reports nothing while it imports torch."""
    attempts = getattr(view, "attempts", [])
    if view.state != "starting" or not attempts or attempts[-1].dispatched_at is None:
        return None
    return f"its trainer was launched {formats.ago(attempts[-1].dispatched_at, now)}"


def _sweep_bar(view: SweepDetail, now: float) -> str:
    there = sum(view.counts.values())
    done, whole = view.steps_done, view.steps_total
    if not whole:
        done, whole = sum(view.counts.get(state, 0) for state in DONE), there
    if there and view.trials_remaining:
        whole += view.trials_remaining * whole // there
    share = done / whole if whole else 0.0
    text = f"{bar(share)} {share * 100:3.0f} %"
    if view.started_at is not None:
        ended_at = view.ended_at if view.state == "finished" else None
        until = now if ended_at is None else ended_at
        text += f"   {_clock(until - view.started_at, ended=ended_at is not None)}"
    eta = sweep_eta(view)
    return text if eta is None else f"{text}   done {_until(eta, now, only_clock=True)}"


def _clock(seconds: float, *, ended: bool) -> str:
    return f"took {formats.duration(seconds)}" if ended else f"{formats.duration(seconds)} so far"


def _best(view: SweepDetail) -> str:
    listed = formats.point(view.best_parameters or {}) or "mean of the seeds"
    at = "" if view.compared_at_step is None else f" at step {view.compared_at_step:,}"
    value = f"{escaped(view.metric)} {formats.loss(view.best_value)}"
    return f"best so far: {escaped(listed)}   {value}{at}"


def _figures(view: RunView, latest: dict[str, float]) -> list[str]:
    spark = formats.sparkline(view.trend, 24, unicode=unicode_safe())
    first = next((value for value in view.trend if math.isfinite(value)), None)
    begun = "" if first is None else f"   [dim]from {formats.loss(first)}[/]"
    lines = [f"  {'loss':<10}{formats.loss(latest.get('train/loss')):>8}   {spark}{begun}"]
    if "val/loss" in latest:
        at = view.latest["val/loss"].step
        lines.append(f"  {'val':<10}{formats.loss(latest['val/loss']):>8}   [dim]at step {at:,}[/]")
    speed = []
    if "tokens_per_s" in latest:
        speed = [f"  {'tok/s':<10}{formats.si(latest['tokens_per_s']):>8}"]
    if "mfu" in latest:
        speed.append(f"MFU {formats.share(latest['mfu'])}")
    if "step_time_s" in latest:
        took = _short(latest["step_time_s"])
        speed.append(f"a step {took}" if speed else f"  {'a step':<10}{took:>8}")
    if latest.get("step_time_s") and "data_wait_s" in latest:
        waits = latest["data_wait_s"] / latest["step_time_s"]
        speed.append(f"waits for data {formats.share(waits)}")
    memory = latest.get("memory/peak_bytes") or latest.get("memory/rss_bytes")
    if memory:
        speed.append(f"memory {formats.size(memory)}")
    lines += ["   ".join(speed)] if speed else []
    more = []
    if "train/lr" in latest:
        more.append(f"  {'lr':<10}{formats.scientific(latest['train/lr']):>8}")
    if "train/grad_norm" in latest:
        more.append(f"grad norm {formats.loss(latest['train/grad_norm'])}")
    if "data/epoch" in latest:
        more.append(f"  epoch {latest['data/epoch']:.3g}")
    return [*lines, *(["   ".join(more)] if more else [])]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else formats.duration(seconds)


def _until(seconds: float, now: float, *, only_clock: bool = False) -> str:
    """Format a remaining time and the local time of its end: 21 m (14:32)."""
    clock = time.strftime("%H:%M", time.localtime(now + seconds))
    if seconds >= 20 * 3600:
        clock = time.strftime("%a %H:%M", time.localtime(now + seconds))
    return f"about {clock}" if only_clock else f"{formats.duration(seconds)} (about {clock})"


def _mark(gpu: GpuView, own: dict[str, str], width: int) -> str:
    others, free = ("▪", "·") if unicode_safe() else ("x", ".")
    if not gpu.busy:
        return f"[dim]{free:>{width}}[/]"
    if gpu.run_id in own:
        return f"[green]{own[gpu.run_id]:>{width}}[/]"
    return f"[yellow]{others:>{width}}[/]"


def _alerts(runs: Sequence[RunView]) -> list[Text]:
    """List alerts, one line each; `lehr show` has the full text."""
    found = [(run.name, alert) for run in runs for alert in run.alerts]
    lines = [
        f"  [yellow]! {escaped(name)}: {escaped(_one_line(text))}[/]"
        for name, text in found[:_ALERTS]
    ]
    if len(found) > _ALERTS:
        lines.append(f"  [yellow]  and {len(found) - _ALERTS} more alerts[/]")
    return _cropped(lines)


def _cropped(lines: Sequence[str]) -> list[Text]:
    """Return lines of markup, each cut at the width, below an empty one; none of none."""
    from rich.text import Text

    cropped = [Text.from_markup(line, overflow="ellipsis") for line in ["", *lines]]
    for line in cropped:
        line.no_wrap = True
    return cropped if lines else []


def _silence(seen: LiveState, now: float) -> list[str]:
    since = now - seen.heard_at
    if since < _SILENT_AFTER_S:
        return []
    silence = f"The server has not answered for {formats.duration(since)}"
    return ["", f"  [yellow]{silence}; trainings continue without it.[/]"]


def _one_line(text: str) -> str:
    return " ".join(text.split())
