"""The figures of a law: the loss and the best values over the compute of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from lehr.analysis import figure_svg
from lehr.analysis.figure import Axis, Band, Figure, FigurePoints
from lehr.analysis.laws.law import Law
from lehr.analysis.lr_rules import Setting
from lehr.schemas.laws import LawRunView, PredictionView

_QUANTITIES = ("width", "depth", "non_embedding", "batch", "tokens")


def between(first: Setting, last: Setting) -> tuple[Setting, ...]:
    """Return settings from the first to the last, in equal ratios."""
    columns = (np.geomspace(getattr(first, q), getattr(last, q), 10) for q in _QUANTITIES)
    rows = [[float(each) for each in row] for row in zip(*columns, strict=True)]
    return tuple(replace(last, **dict(zip(_QUANTITIES, row, strict=True))) for row in rows)


def drawn_law(
    law: Law, path: Sequence[Setting], target: PredictionView, metric: str, runs: list[LawRunView]
) -> dict[str, str]:
    """Draw a law along a path of its settings, with its runs and its target: SVG by title."""
    ended = [run for run in runs if math.isfinite(run.loss)]
    lost = [run for run in runs if not math.isfinite(run.loss)]
    best = np.array([law.best_at(setting) for setting in path])
    losses = np.array([law.best_loss(setting) for setting in path])
    kind: Literal["log", "linear"] = "linear"
    panels = [(metric, kind, losses, [run.loss for run in ended], target.loss)]
    for k, (name, aim) in enumerate(target.best.items()):
        kind, values = "log" if law.fields[k].log else "linear", [run.values[name] for run in ended]
        panels.append((f"best {name}", kind, best[:, :, k], values, aim))
    x = [6 * one.non_embedding * one.tokens for one in path]
    place, figures = [6 * target.parameters * target.tokens], {}
    for title, kind, draws, values, aim in panels:
        low, middle, high = np.quantile(draws, (0.16, 0.5, 0.84), axis=1).tolist()
        name = "law at the best rate, 68 %" if title == metric else "law, 68 %"
        points = [
            FigurePoints(name, "fit", x, middle, dash="dash", width=1.5),
            replace(_points(ended), y=values),
            replace(_points(lost), name="diverged", role="diverged", symbol="cross"),
            FigurePoints(target.name, "best", place, [aim.value], ranges=[aim.likely], width=3.0),
        ]
        axes = Axis("FLOPs: 6 x parameters x tokens", "log"), Axis(title, kind)
        figure = Figure(*axes, [each for each in points if each.x], [Band(x, low, high)])
        figures[title] = figure_svg.draw(figure, f"{title} by the law", links=True)
    return figures


def _points(runs: list[LawRunView]) -> FigurePoints:
    texts = [f"{run.name}\n{run.text}" for run in runs]
    x = [6 * run.parameters * run.tokens for run in runs]
    return FigurePoints("runs", "points", x, [], "dot", texts=texts, runs=[r.run_id for r in runs])
