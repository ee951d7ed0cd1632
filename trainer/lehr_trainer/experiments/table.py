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
class TableRow:
    name: str
    values: dict[str, float | None]
    note: str = ""
    """Why there are no figures, or what to know about them."""
    failed: bool = False
    """Whether it has no figures because of an error that the machine does not explain."""


@dataclass(frozen=True)
class BenchTable:
    experiment: str
    size: str
    title: str
    machine: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self) -> str:
        """Format for a terminal and a page: columns that no row fills are left out."""
        columns = [
            c for c in self.columns if any(r.values.get(c.key) is not None for r in self.rows)
        ]
        noted = any(row.note for row in self.rows)
        head = ["", *(f"{c.title} ({c.unit})" if c.unit else c.title for c in columns)]
        lines = [head + ["note"] * noted]
        for row in self.rows:
            figures = [_shown(row.values.get(c.key), c.digits) for c in columns]
            lines.append([row.name, *figures] + [row.note.replace("|", "\\|")] * noted)
        widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(lines[0]))]
        figured = range(1, len(columns) + 1)
        rule = [f"{'-' * (w - 1)}{':' if i in figured else '-'}" for i, w in enumerate(widths)]
        body = [
            " | ".join(
                cell.rjust(width) if i in figured else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in [lines[0], rule, *lines[1:]]
        ]
        methods = [f"- {c.title}: {c.method}" for c in columns]
        facts = "; ".join(f"{key} {value}" for key, value in self.machine.items())
        notes = [*(f"- {note}" for note in self.notes), f"- Machine: {facts}"]
        return "\n".join(
            [f"**{self.title}**", "", *(f"| {x} |" for x in body), "", *methods, *notes]
        )


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def ratio(above: float | None, below: float | None) -> float | None:
    """Divide; None if either is unknown."""
    return None if above is None or not below else above / below


def change(value: float | None, baseline: float | None) -> float | None:
    """Return the change in percent of ``baseline``."""
    share = ratio(value, baseline)
    return None if share is None else 100 * (share - 1)
