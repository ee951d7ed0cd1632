"""A report as data, and the HTML page made of it.

The page makes no request: style and figures are inside, and its Content-Security-Policy allows
nothing but its own style sheet. Jinja escapes every value.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]
    title: str = ""
    right: frozenset[int] = frozenset()
    """Columns of figures."""
    best: int | None = None
    """Row to emphasize."""
    note: str = ""


@dataclass(frozen=True)
class ReportFigure:
    title: str
    svg: str
    """As ``figure_svg`` draws it. The only HTML that the page does not escape."""
    values: Table | None = None
    """Its exact values."""


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
    text: str = ""
    """Shown as it is, in a fixed-width font."""
    empty: str = ""
    """Shown where the section has nothing else."""

    @property
    def has_content(self) -> bool:
        return bool(
            self.facts or self.alerts or self.notes or self.figures or self.tables or self.text
        )


@dataclass(frozen=True)
class Document:
    kind: str
    """run, sweep or rollout."""
    name: str
    id: str
    project: str
    state: str
    tags: list[str]
    headline: str
    """The result in a sentence."""
    sections: list[Section]
    made_at: str
    version: str


def render(document: Document) -> str:
    """Return the page."""
    template = _templates().get_template("report.html")
    style = (_FOLDER / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return template.render(
        report=document,
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
