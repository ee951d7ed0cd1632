"""A report as data, the HTML page made of it, and the parts that reports share.

The page makes no request: style and figures are inside, and its Content-Security-Policy allows
nothing but its own style sheet. Jinja escapes every value.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lehr.analysis import figure_svg
from lehr.analysis.compare import flatten
from lehr.analysis.figure import curves_figure
from lehr.base import formats
from lehr.base.names import is_rate
from lehr.schemas.checkpoints import CheckpointView
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import CostView, RunDetail, RunView, TrainStage
from lehr.schemas.streams import AlertView, Series, unexplained
from lehr.schemas.sweeps import SweepDetail

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]
    title: str = ""
    right: frozenset[int] = frozenset()  # Columns of figures.
    best: int | None = None  # Row to emphasize.
    note: str = ""


@dataclass(frozen=True)
class ReportFigure:
    title: str
    svg: str  # As ``figure_svg`` draws it. The only HTML that the page does not escape.
    values: Table | None = None  # Its exact values.


@dataclass(frozen=True)
class ReportAlert:
    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Its explanation: name and text of each line."""


@dataclass(frozen=True)
class Section:
    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    alerts: list[ReportAlert] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: list[ReportFigure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    text: str = ""  # Shown as it is, in a fixed-width font.
    empty: str = ""  # Shown where the section has nothing else.

    @property
    def has_content(self) -> bool:
        return bool(
            self.facts or self.alerts or self.notes or self.figures or self.tables or self.text
        )


@dataclass(frozen=True)
class Document:
    kind: str  # run, sweep or rollout.
    view: RunDetail | SweepDetail | RolloutDetail
    headline: str  # The result in a sentence.
    sections: list[Section]


def render(document: Document, made_at: float) -> str:
    """Return the page. ``made_at``: seconds since the epoch."""
    template = _templates().get_template("report.html")
    style = (_FOLDER / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return template.render(
        report=document,
        made_at=at(made_at),
        version=version("lehr"),
        # The file of this package, not text of users.
        style=Markup(style),  # noqa: S704
        policy="; ".join(
            (
                "default-src 'none'",
                f"style-src 'sha256-{digest}'",
                "base-uri 'none'",
                "form-action 'none'",
            )
        ),
    )


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_ROWS = 8  # Exact values beside a figure.
_DIFF = 20_000  # Characters of a diff that a report has.
_HIDDEN = "(hidden)"
_SECRET = ("env",)  # Fields whose values may be secrets. A report is made to be sent.


def at(seconds: float | None) -> str:
    """Return a time in UTC."""
    if seconds is None:
        return formats.NOTHING
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def number(value: float | None) -> str:
    """Return a metric's value with six digits; what is not finite by its name."""
    if value is None:
        return formats.NOTHING
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def metric(name: str, value: float | None) -> str:
    """Return a metric's value in its unit."""
    if name.endswith("_bytes") and value is not None and math.isfinite(value):
        return formats.size(value)
    return number(value)


def curves(
    metric: str,
    series: Sequence[tuple[str, Series]],
    *,
    values: bool = True,
    stages: Sequence[TrainStage] = (),
    coloured: Mapping[str, Any] | None = None,
) -> ReportFigure:
    """Draw one metric of several runs; with a table of values for a single run, and its stages.

    ``coloured``: by run, the value that its colour shows.
    """
    table = None
    if values and len(series) == 1:
        _, one = series[0]
        pairs = list(zip(one.x, one.y, strict=True))
        shown = [pairs[i] for i in _spread(len(pairs), _ROWS)]
        rows = [[formats.si(x) if x >= 1e5 else f"{x:g}", number(y)] for x, y in shown]
        table = Table([one.x_axis, metric], rows, right=frozenset({0, 1}))
    drawn = curves_figure(metric, series, stages, coloured)
    return ReportFigure(metric, figure_svg.draw(drawn, metric), table)


def _spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` indices, evenly, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def cost(view: CostView | None) -> list[tuple[str, str]]:
    """Return the cost as a fact; none before the first attempt."""
    return [("cost", view.text)] if view is not None else []


def config(spec: Mapping[str, Any], *, besides: Iterable[str] = ()) -> Section:
    """Return every field of a spec, but for those in ``besides``."""
    left = set(besides)
    rows = [
        [path, written(path, value)] for path, value in flatten(spec).items() if path not in left
    ]
    return Section("Config", tables=[Table(["field", "value"], rows)])


def written(path: str, value: Any) -> str:
    """Return a value as one would write it in a spec; a value that may be a secret is hidden."""
    parts = path.split(".")
    if any(part in _SECRET for part in parts) and value not in ({}, None):
        return _HIDDEN
    if isinstance(value, str):
        return value
    if isinstance(value, float) or is_rate(path):
        return formats.parameter(value, path)
    return json.dumps(value, default=str, ensure_ascii=False)


def provenance(found: Mapping[str, Any]) -> list[Section]:
    """Return where it was submitted from: commit, host, command, versions, uncommitted changes."""
    git = dict(found.get("git") or {})
    diff = str(git.pop("diff", "") or "")
    facts = {**{k: v for k, v in found.items() if k != "git"}, **{f"git {k}": git[k] for k in git}}
    facts.pop("git diff_cut", None)
    flat = {path.replace(".", " "): value for path, value in flatten(facts).items()}
    sections = [
        Section(
            "Code and provenance",
            facts=[(name, _plain(value)) for name, value in flat.items()],
            empty="None was recorded.",
        )
    ]
    if diff:
        left = len(diff) - _DIFF
        more = f"\n... and {left:,} more characters" if left > 0 else ""
        sections.append(Section("Uncommitted changes", text=f"{diff[:_DIFF]}{more}"))
    return sections


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def checkpoints(found: Sequence[CheckpointView]) -> Section:
    """Return the checkpoints that exist, with their digests."""
    rows = []
    for one in found:
        if one.removed_at is not None and one.copy_state != "there":
            continue
        marks = [name for name, true in (("best", one.best), ("latest", one.latest)) if true]
        where = one.copy_url if one.removed_at is not None and one.copy_url else one.path
        rows.append(
            [
                f"{one.step:,}",
                number(one.val_loss),
                ", ".join(marks),
                formats.size(one.size_bytes),
                one.digest[:16],
                where,
            ]
        )
    head = ["step", "val/loss", "", "size", "SHA-256 of its manifest", "place"]
    tables = [Table(head, rows, right=frozenset({0, 1, 3}))] if rows else []
    return Section("Checkpoints", tables=tables, empty="None exists.")


def alerts(
    found: Sequence[tuple[str, RunView]], diagnosed: Mapping[str, Sequence[AlertView]]
) -> list[ReportAlert]:
    """Return each alert, explained or not, with its run's name where there are several runs."""
    several = len(found) > 1
    shown: list[ReportAlert] = []
    for name, run in found:
        explained = list(diagnosed.get(run.id, ()))
        of_run = [ReportAlert(text) for text in unexplained(run.alerts, explained)]
        of_run += [
            ReportAlert(alert.title, [(line.name, line.text) for line in alert.explanation])
            for alert in explained
        ]
        if several:
            of_run = [replace(one, title=f"{name}: {one.title}") for one in of_run]
        shown += of_run
    return shown
