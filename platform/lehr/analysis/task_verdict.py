"""Whether tasks and loss agree on the best point of a sweep. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from lehr.analysis.noise import pooled_noise

LOSS, TASKS, TASKS_STDERR = MEASURED = "val/loss", "task/mean", "task/mean_stderr"
_BEYOND = 2.0  # Standard errors: about 95 % of differences by chance are smaller.


def disagreement(points: Mapping[str, Sequence[Sequence[float]]]) -> str | None:
    """Return in a sentence that tasks prefer another point than the loss; None if they do not.

    Both must prefer theirs by more than noise: tasks by that of their items and between seeds, the
    loss by that between seeds, where there are several. ``points`` have, by their name, for each
    seed ``MEASURED``; the last is by the items alone.
    """
    if not points:
        return None
    by_loss = min(points, key=lambda name: fmean(points[name][0]))
    by_tasks = max(points, key=lambda name: fmean(points[name][1]))
    one, other = points[by_loss], points[by_tasks]
    ways = math.sqrt(1 / len(one[0]) + 1 / len(other[0]))
    noises = [pooled_noise(point[which] for point in points.values()) for which in (0, 1)]
    seeds = [noise.deviation * ways if noise else 0.0 for noise in noises]
    # Trials answer the same items, so more seeds do not lower what the items contribute.
    noise = math.hypot(seeds[1], fmean(one[2]), fmean(other[2]))
    worse, better = fmean(other[0]) - fmean(one[0]), fmean(other[1]) - fmean(one[1])
    if worse <= _BEYOND * seeds[0] or better <= _BEYOND * noise:
        return None
    return (
        f"Tasks and loss disagree: {TASKS} is best at {by_tasks}, {fmean(other[1]):.3f} against "
        f"{fmean(one[1]):.3f} (standard error of the difference {noise:.3f}) at {by_loss}, which "
        f"{LOSS} prefers by {worse:.3g}."
    )
