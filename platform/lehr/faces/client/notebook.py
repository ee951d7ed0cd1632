"""Small HTML tables of runs, sweeps and rollouts for notebooks, live while the client waits.

All text of users is escaped. There is no script, so a trusted and an untrusted notebook show
the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from lehr.base import formats

if TYPE_CHECKING:
    from lehr.schemas.comparisons import ComparisonView
    from lehr.schemas.rollouts import GateView, RolloutDetail, StageView
    from lehr.schemas.runs import RunView
    from lehr.schemas.sweeps import SweepDetail, TrialView

_CELL = "padding:2px 10px;text-align:{};font-variant-numeric:tabular-nums"


def run_html(run: RunView, url: str) -> str:
    rows = [
        ("state", _state(run)),
        ("step", _steps(run)),
        *((name, formats.loss(latest.value)) for name, latest in run.latest.items()),
        ("trend", formats.sparkline(run.trend, width=len(run.trend)) or formats.NOTHING),
        ("time left", formats.duration(run.eta_s)),
    ]
    head = _title(run.name, url, run.id)
    body = "".join(f"<tr>{_td(name)}{_td(value, 'right')}</tr>" for name, value in rows)
    return f"{head}<table>{body}</table>"


def sweep_html(sweep: SweepDetail, url: str) -> str:
    counts = " · ".join(f"{count} {state}" for state, count in sweep.counts.items() if count)
    names = ["trial", *sweep.parameters, sweep.metric, "trend", "tok/s", "MFU", "state"]
    head = _heads(*names)
    body = "".join(_trial_row(trial, sweep.parameters) for trial in sweep.trials)
    left_out = sum(sweep.counts.values()) - len(sweep.trials)
    more = [f"{left_out:,} more trials are not shown here."] if left_out > 0 else []
    notes = "".join(
        f"<li>{escape(note)}</li>" for note in [*more, *sweep.notes] if note != sweep.held_out_note
    )
    return (
        f"{_title(sweep.name, url, counts)}{_first(sweep.held_out_note)}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{f'<ul>{notes}</ul>' if notes else ''}"
    )


def rollout_html(rollout: RolloutDetail, url: str) -> str:
    """Draw a table with a row per gate, stage after stage."""
    line = " → ".join(f"{name} {state}" for name, state in rollout.progress.items())
    head = _heads("stage", "gate", "expected", "seen", "verdict")
    body = "".join(
        _gate_row(stage, gate, first=index == 0)
        for stage in rollout.stages
        for index, gate in enumerate(stage.gates)
    )
    items = [*([rollout.reason] if rollout.reason else []), *rollout.notes]
    notes = "".join(f"<li>{escape(note)}</li>" for note in items)
    return (
        f"{_title(rollout.name, url, line)}<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{f'<ul>{notes}</ul>' if notes else ''}"
    )


def comparison_html(found: ComparisonView) -> str:
    """Draw the compared runs, then their differences, then the notes."""
    at = "" if found.common_x is None else f" at {found.x_axis} {found.common_x:,.6g}"
    head = _heads("run", f"{found.metric}{at}", "delta", "median tok/s", "median MFU", "state")
    body = "".join(
        f"<tr>{_td(one.name or one.run_id)}{_td(formats.loss(one.value), 'right')}"
        f"{_td(one.incomparable or formats.loss(one.delta), 'right')}"
        f"{_td(formats.si(one.tokens_per_s), 'right')}{_td(formats.share(one.mfu), 'right')}"
        f"{_td(one.state)}</tr>"
        for one in found.results
    )
    names = [one.name or one.run_id for one in found.results]
    differences = "".join(
        f"<tr>{_td(one.path)}{''.join(_td(text, 'right') for text in texts)}</tr>"
        for one in found.differences
        if one.factor
        for texts in [[formats.parameter(value, one.path) for value in one.values]]
    )
    notes = "".join(
        f"<li>{escape(note)}</li>"
        for note in (
            *found.means,
            *(gap.sentence for gap in found.gaps),
            f"Batches: {found.batches_note}",
            *found.notes,
        )
        if note != found.held_out_note
    )
    return (
        f"{_first(found.held_out_note)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<table><thead><tr>{_heads('what differs', *names)}</tr></thead>"
        f"<tbody>{differences}</tbody></table><ul>{notes}</ul>"
    )


def live_display() -> Callable[[str], None] | None:
    """Return a function that shows HTML in place under the cell; None outside a notebook."""
    # A notebook's process has IPython already, so it need not be imported to find out.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = importlib.import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda html: handle.update(display.HTML(html))


def _trial_row(trial: TrialView, parameters: list[str]) -> str:
    run = trial.run
    value = f"{formats.loss(trial.value)}{' best' if trial.best else ''}"
    columns = [
        _td(str(trial.number), "right"),
        *(_td(formats.parameter(trial.parameters.get(path), path), "right") for path in parameters),
        _td(value, "right", bold=trial.best),
        _td(formats.sparkline(run.trend, width=len(run.trend)) or formats.NOTHING),
        _td(formats.si(_latest(run, "tokens_per_s")), "right"),
        _td(formats.share(_latest(run, "mfu")), "right"),
        _td(_state(run)),
    ]
    return f"<tr>{''.join(columns)}</tr>"


def _gate_row(stage: StageView, gate: GateView, *, first: bool) -> str:
    columns = [
        _td(f"{stage.title}: {stage.state}" if first else "", bold=first),
        _td(gate.title),
        _td(gate.expected),
        _td(gate.seen or formats.NOTHING),
        _td(gate.state.replace("_", " "), bold=gate.state == "failed"),
    ]
    return f"<tr>{''.join(columns)}</tr>"


def _heads(*names: str) -> str:
    return "".join(f'<th style="{_CELL.format("left")}">{escape(name)}</th>' for name in names)


def _title(name: str, url: str, beside: str) -> str:
    return f'<p><a href="{escape(url)}"><b>{escape(name)}</b></a> {escape(beside)}</p>'


def _first(note: str | None) -> str:
    """Draw the note that readers need before the table."""
    return f"<p><b>{escape(note)}</b></p>" if note else ""


def _td(text: str, align: str = "left", *, bold: bool = False) -> str:
    shown = f"<b>{escape(text)}</b>" if bold else escape(text)
    return f'<td style="{_CELL.format(align)}">{shown}</td>'


def _state(run: RunView) -> str:
    why = run.reason or run.pending_reason
    return f"{run.state}: {why}" if why else run.state


def _steps(run: RunView) -> str:
    done = formats.count(run.step)
    return f"{done} of {run.total_steps:,}" if run.total_steps else done


def _latest(run: RunView, name: str) -> float | None:
    found = run.latest.get(name)
    return found.value if found else None
