"""What notebooks show: pandas frames, live while the client waits, and figures.

pandas is imported late, since the light install lacks it. All text of users is escaped. There is
no script, so a trusted and an untrusted notebook show the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lehr.base import formats
from lehr.errors import UserError
from lehr_trainer.extras import install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd

    from lehr.schemas.comparisons import ComparisonView
    from lehr.schemas.rollouts import RolloutDetail, StageView
    from lehr.schemas.runs import RunView
    from lehr.schemas.streams import Series
    from lehr.schemas.sweeps import SweepDetail, TrialView


def import_pandas(what: str) -> ModuleType:
    try:
        import pandas as pd
    except ImportError as error:
        raise UserError(
            f"{what} needs pandas, which is not installed.",
            hint=f"Install it: {install('lehr[notebook]')}",
        ) from error
    return pd


class Drawing:
    """Figures below one another: a notebook shows them, and ``save`` writes them as SVG."""

    def __init__(self, figures: Sequence[str], title: str = "") -> None:
        """Take figures as ``figure_svg.draw`` returns them."""
        self.title = title
        self._figures = figures

    def save(self, path: Path | str) -> None:
        Path(path).write_text(self._repr_svg_(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        from lehr.analysis.figure_svg import HEIGHT, WIDTH

        lines = textwrap.wrap(self.title, 95)
        top = 18 * len(lines)
        heads = [
            f'<text x="8" y="{18 * number}">{escape(line)}</text>'
            for number, line in enumerate(lines, start=1)
        ]
        panels = [
            figure.replace("<svg ", f'<svg y="{top + HEIGHT * number}" height="{HEIGHT}" ', 1)
            for number, figure in enumerate(self._figures)
        ]
        height = top + HEIGHT * len(panels)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}"><style>{_STYLE}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join([*heads, *panels])}</svg>'
        )


_STYLE = """
text { fill: #1f2328; font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.grid { stroke: #d8dee4; } .axis { fill: none; stroke: #59636e; }
.band { fill: #7d8f8d; fill-opacity: 0.22; } .warn { fill: #bd1f01; fill-opacity: 0.1; }
.mark { stroke: #59636e; stroke-dasharray: 2 3; }
"""


def series_frame(series: Sequence[Series]) -> pd.DataFrame:
    """Return one row per step: a column ``step`` and one per metric, NaN where a value is
    missing. A metric with the name ``step`` is ``program/step``, as in an export.
    """
    import pandas as pd

    if series and all(one.step == series[0].step for one in series):  # Quicker than to align them.
        same = {one.name: one.y for one in series}
        frame = pd.DataFrame(same, index=series[0].step, dtype="float64").sort_index()
    else:
        columns = {one.name: pd.Series(one.y, index=one.step, dtype="float64") for one in series}
        frame = pd.DataFrame(columns).sort_index()
    frame.index = frame.index.astype("int64").rename("step")
    return frame.rename(columns={"step": "program/step"}).reset_index()


def trials_frame(trials: Sequence[TrialView], metric: str) -> pd.DataFrame:
    """Return one row per trial, in the sweep's order: its values, its result, its run."""
    import pandas as pd

    rows: list[dict[str, Any]] = [
        {
            **trial.parameters,
            metric: trial.value,
            "step": trial.step,
            "rank": trial.rank,
            "held_out": trial.held_out,
            "state": trial.run.state,
            "reason": trial.run.reason or trial.run.pending_reason,
            "tokens_per_s": trial.run.newest.get("tokens_per_s"),
            "mfu": trial.run.newest.get("mfu"),
            "run": trial.run.id,
        }
        for trial in trials
    ]
    index = pd.Index([trial.number for trial in trials], name="trial")
    frame = pd.DataFrame(rows, index=index)
    # Integers with gaps stay integers.
    return frame.astype({"step": "Int64", "rank": "Int64"}) if rows else frame


def gates_frame(stages: Sequence[StageView]) -> pd.DataFrame:
    """Return one row per gate, stage by stage: the expected and the observed value, and the
    verdict.
    """
    import pandas as pd

    rows = [
        {
            "stage": stage.name,
            "gate": gate.name,
            "state": gate.state,
            "value": gate.value,
            "at_least": gate.at_least,
            "at_most": gate.at_most,
            "unit": gate.unit,
            "expected": gate.expected,
            "seen": gate.seen,
            "run": gate.run_id,
            "step": gate.step,
        }
        for stage in stages
        for gate in stage.gates
    ]
    frame = pd.DataFrame(rows)
    kinds = {"value": "Float64", "at_least": "Float64", "at_most": "Float64", "step": "Int64"}
    return frame.astype(kinds) if rows else frame


def comparison_frame(found: ComparisonView) -> pd.DataFrame:
    """Return one row per run, the baseline first: its value and figures, its group if they were
    grouped, and each factor that differs.
    """
    import pandas as pd

    factors = [difference for difference in found.differences if difference.factor]
    group_of = {run_id: group.name for group in found.groups for run_id in group.run_ids}
    rows: list[dict[str, Any]] = [
        {
            "run": one.run_id,
            "name": one.name,
            **({"group": group_of[one.run_id]} if group_of else {}),
            "state": one.state,
            found.x_axis: one.x,
            found.metric: one.value,
            "delta": one.delta,
            "incomparable": one.incomparable,
            "held_out": one.held_out,
            "batches": one.batches,
            "tokens_per_s": one.tokens_per_s,
            "mfu": one.mfu,
            "memory_bytes": one.memory_bytes,
            **{difference.path: difference.values[number] for difference in factors},  # noqa: PD011
        }
        for number, one in enumerate(found.results)
    ]
    return pd.DataFrame(rows)


_DIGESTS = ["held_out", "batches"]
"""Columns of a frame that nobody reads."""


def run_html(run: RunView, url: str) -> str | None:
    facts = {
        "state": _state(run),
        "step": _steps(run),
        **{name: formats.loss(latest.value) for name, latest in run.latest.items()},
        "trend": formats.sparkline(run.trend, width=len(run.trend)) or formats.NOTHING,
        "time left": formats.duration(run.eta_s),
    }
    return _shown(
        (run.name, url, run.id), lambda: import_pandas("").DataFrame([facts], index=[""]).T
    )


def sweep_html(sweep: SweepDetail, url: str) -> str | None:
    counts = " · ".join(f"{count} {state}" for state, count in sweep.counts.items() if count)
    left_out = sum(sweep.counts.values()) - len(sweep.trials)
    more = [f"{left_out:,} more trials are not shown here."] if left_out > 0 else []
    return _shown(
        (sweep.name, url, counts),
        lambda: trials_frame(sweep.trials, sweep.metric),
        [*more, *sweep.notes],
        sweep.held_out_note,
    )


def rollout_html(rollout: RolloutDetail, url: str) -> str | None:
    line = " → ".join(f"{name} {state}" for name, state in rollout.progress.items())
    shown = ["stage", "gate", "expected", "seen", "state"]
    return _shown(
        (rollout.name, url, line),
        lambda: gates_frame(rollout.stages)[shown],
        [*([rollout.reason] if rollout.reason else []), *rollout.notes],
    )


def compared_at(comparison: ComparisonView) -> str:
    """Return where the values were compared, to follow the name of the metric."""
    if comparison.common_x is None:
        return ""
    if comparison.x_axis == "end":
        return " at the end of each run"
    return f" at {comparison.x_axis} {comparison.common_x:,.6g}"


def comparison_html(comparison: ComparisonView) -> str | None:
    notes = [
        *comparison.means,
        *(gap.sentence for gap in comparison.gaps),
        f"Batches: {comparison.batches_note}",
        *comparison.notes,
    ]
    name = f"{comparison.metric}{compared_at(comparison)}"
    return _shown(
        (name, "", ""), lambda: comparison_frame(comparison), notes, comparison.held_out_note
    )


def _shown(
    title: tuple[str, str, str],
    frame: Callable[[], pd.DataFrame],
    notes: Sequence[str] = (),
    first: str | None = None,
) -> str | None:
    """Draw a frame under a name, its link and what is beside it; ``first`` is the note that
    readers need before the table. None without pandas: the notebook then shows the object's text.
    """
    if importlib.util.find_spec("pandas") is None:
        return None
    name, url, beside = map(escape, title)
    head = f'<a href="{url}"><b>{name}</b></a>' if url else f"<b>{name}</b>"
    told = f"<p><b>{escape(first)}</b></p>" if first else ""
    with import_pandas("").option_context("display.max_colwidth", None):
        table = (
            frame()
            .drop(columns=_DIGESTS, errors="ignore")
            .dropna(axis="columns", how="all")
            .to_html(border=0, float_format="{:.6g}".format, na_rep=formats.NOTHING)
        )
    items = "".join(f"<li>{escape(note)}</li>" for note in notes if note != first)
    return f"<p>{head} {beside}</p>{told}{table}" + (f"<ul>{items}</ul>" if items else "")


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


def _state(run: RunView) -> str:
    why = run.reason or run.pending_reason
    return f"{run.state}: {why}" if why else run.state


def _steps(run: RunView) -> str:
    done = formats.count(run.step)
    return f"{done} of {run.total_steps:,}" if run.total_steps else done
