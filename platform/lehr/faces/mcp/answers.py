"""Short answers for a model's context: no empty fields, few digits, limits on text and lists."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lehr.base import formats

if TYPE_CHECKING:
    from lehr.schemas.cluster import QueueEntry
    from lehr.schemas.runs import RunView
    from lehr.schemas.streams import Series
    from lehr.schemas.sweeps import TrialView

Answer = dict[str, Any]
MOST_CHARACTERS = 16_000
"""Of one answer: about 5,000 tokens. Tools page long before; this is the last limit."""
LONGEST_TEXT = 2_000
_DIGITS = 6
_LONG = ("memory_stages", "corpus_tokens", "embedding_parameters")


def text_of(answer: Answer) -> str:
    """Return the answer as JSON, cut to ``MOST_CHARACTERS``."""
    text = json.dumps(_short(answer), ensure_ascii=False, separators=(",", ":"), default=str)
    return clipped(text, MOST_CHARACTERS - 100)


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """Return at most ``most`` characters of the text, with a note on the rest."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def brief_run(view: RunView) -> Answer:
    """Return what a list shows of a run."""
    return {
        "id": view.id,
        "name": view.name,
        "project": view.project if view.project != "default" else None,
        "state": view.state,
        "requested": None if view.desired == "run" else view.desired,
        "why": view.reason or view.pending_reason,
        "liveness": None if view.liveness == "ok" else view.liveness,
        "step": view.step,
        "of": view.total_steps or None,
        "eta": formats.duration(view.eta_s) if view.eta_s else None,
        "varied": view.parameters_varied,
        "latest": {
            name: one.value
            for name, one in view.latest.items()
            if name in {"train/loss", "val/loss", "tokens_per_s", "mfu"}
        },
        "alerts": [clipped(alert, 200) for alert in view.alerts[:3]],
        "tags": view.tags,
        "sweep": view.sweep_id,
        "rollout": view.rollout_id,
        "submitted": ago(view.created_at),
    }


def brief_queued(entry: QueueEntry) -> Answer:
    fields = {"position", "run_id", "name", "gpus", "gpu_type", "priority", "reason"}
    return {**entry.model_dump(include=fields), "waits_since": ago(entry.queued_at)}


def brief_trial(trial: TrialView) -> Answer:
    fields = {"rank", "parameters", "compared_value", "value", "step"}
    run = {"run": trial.run.id, "state": trial.run.state, "why": trial.run.reason}
    return {**trial.model_dump(mode="json", include=fields), **run}


def brief_plan(made: Answer) -> Answer:
    """Return the plan without its longest parts; of a sweep, the first trials."""
    short = {name: value for name, value in made.items() if name not in _LONG}
    for name in ("plan", "trials", "stages"):
        inner = short.get(name)
        if isinstance(inner, dict):
            short[name] = brief_plan(inner)
        elif isinstance(inner, list):
            short[name] = [brief_plan(part) for part in inner[:10]]
            short[f"{name}_total"] = len(inner)
    return short


def curve(series: Series) -> Answer:
    """Return a curve as two lists: x and the last value of each bucket, with its range."""
    answer: Answer = {
        "metric": series.name,
        "logged_points": series.total_points,
        series.x_axis: [int(x) if float(x).is_integer() else x for x in series.x],
        "value": series.y,
    }
    if not series.exact and series.low is not None and series.total_points > len(series.x):
        answer |= {"low": series.low, "high": series.high}
    if series.nonfinite:
        answer["not_finite_at_steps"] = series.nonfinite[:20]
    return answer


def ago(at: float | None) -> str | None:
    """Return a time as "3 m ago", by this machine's clock."""
    return None if at is None else formats.ago(at, time.time())


def _short(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str):
        return clipped(value, MOST_CHARACTERS // 2)
    if isinstance(value, Mapping):
        short = {str(key): _short(one) for key, one in value.items()}
        return {key: one for key, one in short.items() if one not in (None, [], {}, "")}
    if isinstance(value, Sequence):
        return [_short(one) for one in value]
    if hasattr(value, "model_dump"):
        return _short(value.model_dump(mode="json"))
    return value
