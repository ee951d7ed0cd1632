"""Tables in narrow terminals: columns are left out before values are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lehr.cli.output import console, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

_GAP = 2
_LEAST = 24
"""Characters that the folded column keeps before a column is left out."""


def print_fitting(rows: Table, *, fold: str, spare: Sequence[str] = ()) -> None:
    """Print a table to the console for results, as ``fitting`` makes it."""
    out = console()
    out.print(fitting(rows, out, fold=fold, spare=spare))


def fitting(rows: Table, out: Console, *, fold: str, spare: Sequence[str] = ()) -> Table:
    """Return the table so that each value is whole in the width of ``out``.

    ``fold`` is the column whose text continues in the next line. Columns of ``spare`` are left out
    until the others fit, the first one first.
    """
    kept = list(rows.columns)
    for name in spare:
        if _needed(kept, out, fold) <= out.width:
            break
        kept = [column for column in kept if column.header != name]
    made = table()
    made.show_header = rows.show_header
    for column in kept:
        folds = column.header == fold
        made.add_column(
            column.header,
            justify=column.justify,
            no_wrap=not folds,
            overflow="fold" if folds else column.overflow,
        )
    for row, *cells in zip(rows.rows, *(column.cells for column in kept), strict=True):
        made.add_row(*cells, style=row.style)
    return made


def _needed(columns: Sequence[Column], out: Console, fold: str) -> int:
    widths = []
    for column in columns:
        widest = max(out.measure(cell).maximum for cell in (column.header, *column.cells))
        widths.append(min(widest, _LEAST) if column.header == fold else widest)
    return sum(widths) + _GAP * (len(widths) - 1)
