"""Sweeps and rollouts as tables: trials by rank, stages and gates with their evidence."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lehr.base import formats
from lehr.faces.cli.output import escaped, fitting, state_text, table, unicode_safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lehr.schemas.rollouts import GateView, RolloutDetail, RolloutView, StageView
    from lehr.schemas.runs import RunView
    from lehr.schemas.sweeps import SweepDetail, TrialView

DONE = frozenset({"completed", "failed", "cancelled", "pruned"})
_WAITING = frozenset({"queued", "paused"})
_BAR = 8
_BEST = "best of all"  # The column that marks the best; it has no heading.
SPARE = ("MFU", "trend", "tok/s", "GPU")
"""Columns of trials that narrow terminals leave out, the first one first."""


def trials_table(sweep: SweepDetail) -> Table:
    """Return a table with one row per trial, by rank: values, metric, curve, speed and state."""
    trials = sorted(sweep.seeded, key=lambda trial: trial.place)
    columns = {
        "#": [str(trial.rank or formats.NOTHING) for trial in trials],
        "run": [escaped(trial.run.name) for trial in trials],
        **_values(sweep, trials),
        **_course(trials),
    }
    return _table(trials, columns, [_state(trial) for trial in trials])


def live_table(sweep: SweepDetail, out: Console) -> Table:
    """Return the trials in the width of ``out``: one line each, with its progress."""
    from rich.text import Text

    trials = sweep.trials
    columns = {
        "#": [str(trial.number) for trial in trials],
        **_values(sweep, trials),
        "loss": [formats.loss(trial.run.newest.get("train/loss")) for trial in trials],
        **_course(trials),
        "done": [_done(trial.run, bar=out.width >= 100) for trial in trials],
    }
    states = [Text.from_markup(_state(trial, step=False), overflow="ellipsis") for trial in trials]
    for text in states:
        text.no_wrap = True
    rows = _table(trials, columns, states)
    return fitting(rows, out, fold="state", spare=("loss", *SPARE))


def _table(
    trials: Sequence[TrialView], columns: dict[str, list[str]], states: Sequence[str | Text]
) -> Table:
    left = {"run", _BEST, "trend", "GPU"}
    rows = table()
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in left else "right"
        head = "" if name == _BEST else escaped(name)
        rows.add_column(head, justify=justify, no_wrap=True)
    # On a narrow terminal the texts are shortened, not the figures.
    rows.add_column("state", overflow="fold")
    for index, trial in enumerate(trials):
        row = [texts[index] for texts in columns.values()]
        rows.add_row(*row, states[index], style="bold" if trial.best else None)
    return rows


def _values(sweep: SweepDetail, trials: Sequence[TrialView]) -> dict[str, list[str]]:
    """Return the swept values, the metric and the mark of the best."""
    columns = {}
    for name, path in zip(formats.short_paths(sweep.parameters), sweep.parameters, strict=True):
        values = [trial.parameters.get(path, formats.NOTHING) for trial in trials]
        columns[name] = [escaped(formats.parameter(value, path)) for value in values]
    columns[sweep.metric] = [formats.loss(trial.value) for trial in trials]
    columns[_BEST] = ["best" if trial.best else "" for trial in trials]
    return columns


def _course(trials: Sequence[TrialView]) -> dict[str, list[str]]:
    """Return the curves, the speed and the places."""
    columns = {
        "trend": [
            formats.sparkline(trial.run.trend, 8, unicode=unicode_safe()) for trial in trials
        ],
        "tok/s": [formats.si(trial.run.newest.get("tokens_per_s")) for trial in trials],
    }
    columns["MFU"] = [formats.share(trial.run.newest.get("mfu")) for trial in trials]
    several_nodes = len({gpu.node for trial in trials for gpu in trial.run.placement}) > 1
    columns["GPU"] = [_place(trial, several_nodes) for trial in trials]
    return columns


def headline(sweep: SweepDetail) -> str:
    """Return one line: ``lr-grid   running 7 · done 1 · waiting 0   step 412/1,000   ETA 21 m``."""
    counts = sweep.counts
    running = sum(n for state, n in counts.items() if state not in DONE | _WAITING)
    parts = [f"running {running}"] if running else []
    parts += [f"done {counts.get('completed', 0)}"]
    parts += [f"waiting {n}" for n in [sum(counts.get(s, 0) for s in _WAITING)] if n]
    parts += [f"{s} {counts[s]}" for s in ("failed", "cancelled", "pruned") if counts.get(s)]
    text = f"[bold]{sweep.name}[/]   {' · '.join(parts)}"
    totals = {trial.run.total_steps for trial in sweep.trials}
    if len(totals) == 1 and sweep.steps_total and sweep.state != "finished":
        there = max(sum(counts.values()), 1)
        text += f"   step {sweep.steps_made // there:,}/{sweep.steps_total // there:,}"
    eta = sweep_eta(sweep)
    if eta is not None:
        text += f"   ETA {formats.duration(eta)}"
    return text


def sweep_eta(sweep: SweepDetail) -> float | None:
    """Return seconds to the end of the last run; None if it cannot be estimated.

    Assumes that a run without an estimate takes as long as the median of those that have one or
    have completed, start included. A waiting one takes the place of the first run to end.
    """
    runs = [trial.run for trial in sweep.trials]
    active = [run for run in runs if run.state in {"running", "starting"}]
    # How many trials a campaign has yet to choose is not known.
    if not active or (sweep.method == "campaign" and sweep.trials_remaining):
        return None
    waiting = sweep.counts.get("queued", 0) + sweep.trials_remaining
    ends = [run.eta_s for run in active if run.eta_s is not None]
    if waiting or len(ends) < len(active):
        known = [run for run in runs if run.eta_s is not None or run.state == "completed"]
        held = [(run, _held_s(run)) for run in known if run.total_steps]
        whole = [seconds + (run.eta_s or 0.0) for run, seconds in held if seconds]
        if not whole:
            return None
        usual = statistics.median(whole)
        ends += [usual - _held_s(run) for run in active if run.eta_s is None]
        if min(ends) < 0:  # It has not begun to train after the time of a whole run.
            return None
        heapq.heapify(ends)
        for _ in range(waiting):
            heapq.heapreplace(ends, ends[0] + usual)
    return max(ends)


def _held_s(run: RunView) -> float:
    """Return for how long its attempts have held GPUs, from each start on; 0 without a GPU."""
    return 0.0 if run.used is None else run.used.gpu_hours * 3600 / max(run.gpus, 1)


def _done(run: RunView, *, bar: bool) -> str:
    if not run.total_steps:
        return formats.NOTHING if run.step is None else f"step {run.step:,}"
    share = min((run.step or 0) / run.total_steps, 1.0)
    if not bar:  # The course of the loss says more in as many columns.
        return f"{share * 100:.0f} %"
    full = round(share * _BAR)
    whole, empty = ("━", "─") if unicode_safe() else ("#", "-")
    return f"[green]{whole * full}[/][dim]{empty * (_BAR - full)}[/] {share * 100:3.0f} %"


def _place(trial: TrialView, several_nodes: bool) -> str:
    places = trial.run.placement
    if not places or trial.run.state in DONE | _WAITING:
        return ""
    if several_nodes:
        return ",".join(f"{gpu.node}:{gpu.gpu}" for gpu in places)
    return ",".join(str(gpu.gpu) for gpu in places)


def _state(trial: TrialView, *, step: bool = True) -> str:
    run = trial.run
    if run.state == "queued":
        return state_text("queued", run.pending_reason)
    if run.state in {"starting", "running"} and not run.step:
        return state_text(run.state, run.reason)
    if run.state in {"running", "stopping"}:
        liveness = f", {run.liveness}" if run.liveness != "ok" else ""
        return f"{state_text(run.state)}{f' {formats.count(run.step)}' * step}{liveness}"
    if run.state == "completed":
        return state_text("completed")
    return state_text(run.state, run.reason)


_STYLES = {
    "passed": "green",
    "failed": "red",
    "running": "bold",
    "cancelled": "yellow",
    "waiting": "dim",
    "skipped": "dim",
    "off": "dim",
    "not_judged": "yellow",
}


def styled(state: str) -> str:
    """Return the state of a stage or gate in its colour, as markup."""
    text = state.replace("_", " ")
    style = _STYLES.get(state)
    return f"[{style}]{text}[/]" if style else text


def rollout_headline(rollout: RolloutView) -> str:
    """Return one line: ``llama-1b   running at one_gpu   cpu passed > one_gpu running > ...``."""
    arrow = " → " if unicode_safe() else " > "
    line = arrow.join(f"{name} {styled(state)}" for name, state in rollout.progress.items())
    at = f" at {rollout.stage}" if rollout.stage and rollout.state != "passed" else ""
    return f"[bold]{escaped(rollout.name)}[/]   {styled(rollout.state)}{at}   {line}"


def gates_table(rollout: RolloutDetail, *, begun_only: bool = False) -> Table:
    """Return a table with one row per gate; ``begun_only`` omits stages that have not started."""
    rows = table("stage", "gate", "verdict")
    rows.add_column("seen", overflow="fold")
    rows.add_column("expected", overflow="fold")
    for stage in rollout.stages:
        if begun_only and stage.state in {"waiting", "skipped"}:
            continue
        for index, gate in enumerate(stage.gates):
            rows.add_row(
                escaped(stage.title) if index == 0 else "",
                escaped(gate.title),
                styled(gate.state),
                escaped(gate.seen or formats.NOTHING),
                escaped(gate.expected),
                style="bold" if gate.state == "failed" else None,
            )
    return rows


def stages_table(rollout: RolloutDetail, out: Console) -> Table:
    """Return a table with one row per stage: what it is, its progress, its duration."""
    rows = table(
        "#", "stage", "state", "GPUs", "steps", "gates", "GPU time", right=("#", "GPUs", "steps")
    )
    rows.add_column("runs", overflow="fold")
    for stage in rollout.stages:
        rows.add_row(
            str(stage.number),
            escaped(stage.title),
            styled(stage.state),
            str(stage.gpus),
            _steps(stage),
            _judged(stage.gates),
            formats.duration(stage.gpu_seconds) if stage.gpu_seconds is not None else "",
            escaped(", ".join(one.run.name for one in stage.runs)),
        )
    return fitting(rows, out, fold="runs", spare=("runs", "GPU time", "GPUs"))


def why(rollout: RolloutDetail) -> str | None:
    """Return why the rollout stopped, or what it does now."""
    if rollout.reason is not None:
        return rollout.reason
    return next((s.reason for s in rollout.stages if s.state == "running" and s.reason), None)


def _steps(stage: StageView) -> str:
    main = next((one.run for one in stage.runs if one.role == "train"), None)
    return f"{formats.count(main.step if main else 0)}/{formats.count(stage.steps)}"


def _judged(gates: list[GateView]) -> str:
    enabled = [gate for gate in gates if gate.state != "off"]
    passed = sum(gate.state == "passed" for gate in enabled)
    parts = [f"{passed} of {len(enabled)} passed"]
    for state in ("failed", "not_judged"):
        number = sum(gate.state == state for gate in enabled)
        parts += [f"{number} {state.replace('_', ' ')}"] if number else []
    return ", ".join(parts)
