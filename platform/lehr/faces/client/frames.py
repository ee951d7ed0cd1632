"""pandas frames from views. pandas is imported late, since the light install lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr.errors import UserError
from lehr_trainer.extras import install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd

    from lehr.schemas.comparisons import ComparisonView
    from lehr.schemas.rollouts import StageView
    from lehr.schemas.streams import Series
    from lehr.schemas.sweeps import TrialView


def import_pandas(what: str) -> ModuleType:
    try:
        import pandas as pd
    except ImportError as error:
        raise UserError(
            f"{what} needs pandas, which is not installed.",
            hint=f"Install it: {install('lehr[notebook]')}",
        ) from error
    return pd


def need_plotly(what: str) -> None:
    """Raise UserError if figures cannot be made."""
    try:
        import plotly  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UserError(
            f"{what} needs plotly, which is not installed.",
            hint=f"Install it: {install('lehr[notebook]')}",
        ) from error


def series_frame(series: Sequence[Series]) -> pd.DataFrame:
    """Return one row per step: a column ``step`` and one per metric, NaN where a value is
    missing.
    """
    import pandas as pd

    columns = {one.name: pd.Series(one.y, index=one.step, dtype="float64") for one in series}
    frame = pd.DataFrame(columns).sort_index()
    frame.index = frame.index.astype("int64").rename("step")
    return frame.reset_index()


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
            "tokens_per_s": _latest(trial, "tokens_per_s"),
            "mfu": _latest(trial, "mfu"),
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


def _latest(trial: TrialView, name: str) -> float | None:
    found = trial.run.latest.get(name)
    return found.value if found else None
