"""Table of results: every column has its unit and how its figures were obtained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    unit: str
    method: str
    """How the figure was obtained, for readers who want to check it."""
    digits: int = 2


@dataclass(frozen=True)
class Row:
    name: str
    values: dict[str, float | str | None]
    note: str = ""
    """Why there are no figures, or what to know about them."""
    failed: bool = False
    """Whether it has no figures because of an error that the machine does not explain."""


@dataclass(frozen=True)
class ExperimentTable:
    experiment: str
    size: str
    title: str
    machine: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def used_columns(self) -> list[Column]:
        """Return the columns in which some row has a figure."""
        return [c for c in self.columns if any(r.values.get(c.key) is not None for r in self.rows)]

    def cells(self) -> list[list[str]]:
        """Return head and rows as text, without columns that no row fills."""
        columns, noted = self.used_columns, any(row.note for row in self.rows)
        head = ["", *(f"{c.title} ({c.unit})" if c.unit else c.title for c in columns)]
        lines = [head + ["note"] * noted]
        for row in self.rows:
            figures = [shown(row.values.get(c.key), c.digits) for c in columns]
            lines.append([row.name, *figures] + [row.note] * noted)
        return lines

    def text(self) -> str:
        """Format for a terminal or a log."""
        lines = self.cells()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        last = len(self.used_columns)
        body = [
            "  ".join(
                cell.rjust(width) if 0 < i <= last else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, "", *body, "", *self.explanations()])

    def markdown(self) -> str:
        """Format as Markdown."""
        head, *rows = ([cell.replace("|", "\\|") for cell in line] for line in self.cells())
        last = len(self.used_columns)
        rule = ["---:" if 0 < i <= last else "---" for i in range(len(head))]
        lines = [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]
        return "\n".join([f"**{self.title}**", "", *lines, "", *self.explanations("- ")])

    def explanations(self, bullet: str = "") -> list[str]:
        columns = [f"{bullet}{c.title}: {c.method}" for c in self.used_columns]
        facts = "; ".join(f"{key} {value}" for key, value in self.machine.items())
        return [*columns, *(f"{bullet}{note}" for note in self.notes), f"{bullet}Machine: {facts}"]


def shown(value: float | str | None, digits: int) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def ratio(above: float | None, below: float | None) -> float | None:
    """Divide; None if either is unknown."""
    return None if above is None or not below else above / below


def change(value: float | None, baseline: float | None) -> float | None:
    """Return the change in percent of ``baseline``."""
    share = ratio(value, baseline)
    return None if share is None else 100 * (share - 1)
