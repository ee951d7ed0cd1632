"""The fields of a sweep's view that the server computes over all of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lehr.schemas.runs import RunView


def progress_fields(runs: Sequence[RunView]) -> dict[str, Any]:
    begun = [run.started_at for run in runs if run.started_at is not None]
    known = [run.total_steps for run in runs if run.total_steps]
    ended = [run.ended_at for run in runs if run.ended_at is not None]
    return {
        "trials_total": len(runs),
        "steps_made": sum(run.step or 0 for run in runs),
        "steps_done": sum(
            run.step or 0 if run.ended_at is None else run.total_steps or run.step or 0
            for run in runs
        ),
        "steps_total": sum(known) if len(known) == len(runs) else 0,
        "started_at": min(begun, default=None),
        "ended_at": max(ended, default=None),
    }
