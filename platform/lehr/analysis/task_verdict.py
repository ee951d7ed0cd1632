"""Whether tasks and loss agree on the best point of a sweep. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lehr.analysis.noise import pooled_noise
from lehr.base import formats

LOSS, TASKS, TASKS_STDERR = "val/loss", "task/mean", "task/mean_stderr"
_BEYOND = 2.0
"""Standard errors: about 95 % of differences by chance are smaller."""


@dataclass(frozen=True)
class ScoredPoint:
    """What the trials of a point have at one step, each with another seed."""

    parameters: Mapping[str, Any]
    losses: Sequence[float]
    tasks: Sequence[float]
    """Means of centred accuracies."""
    stderrs: Sequence[float]
    """Of these, by the items alone."""


def disagreement(points: Sequence[ScoredPoint]) -> str | None:
    """Return in a sentence that tasks prefer another point than the loss; None if they do not.

    Both must prefer theirs by more than noise: tasks by that of their items and between seeds, the
    loss by that between seeds, where there are several.
    """
    if len(points) < 2:
        return None
    by_loss = min(points, key=lambda point: fmean(point.losses))
    by_tasks = max(points, key=lambda point: fmean(point.tasks))
    both = (by_loss, by_tasks)
    losses, tasks = [fmean(one.losses) for one in both], [fmean(one.tasks) for one in both]
    ways = math.sqrt(sum(1 / len(one.losses) for one in both))
    of_loss = pooled_noise([point.losses for point in points])
    of_tasks = pooled_noise([point.tasks for point in points])
    # Trials answer the same items, so more seeds do not lower what the items contribute.
    items = (fmean(one.stderrs) for one in both)
    noise = math.hypot(*items, of_tasks.deviation * ways if of_tasks else 0.0)
    if losses[1] - losses[0] <= _BEYOND * (of_loss.deviation * ways if of_loss else 0.0):
        return None
    if not tasks[1] - tasks[0] > _BEYOND * noise:
        return None
    worse, better = (formats.point(one.parameters) for one in both)
    return (
        f"Tasks and loss disagree: {TASKS} is best at {better}, {tasks[1]:.3f} against "
        f"{tasks[0]:.3f} (standard error of the difference {noise:.3f}) at {worse}, which {LOSS} "
        f"prefers by {losses[1] - losses[0]:.3g}."
    )
