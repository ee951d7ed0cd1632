"""Output of commands: to a terminal, a pipe or as ``--json``.

The result goes to stdout; questions, progress and errors go to stderr. Colour and live displays are
for terminals only. A pipe gets plain text that is never cut.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.base import formats
from lehr.errors import LehrError, SpecError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Column, Table

    from lehr.schemas.streams import AlertView

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

STATE_STYLES = {
    "running": "green",
    "starting": "green",
    "stopping": "yellow",
    "external": "green",
    "queued": "dim",
    "paused": "yellow",
    "completed": "",
    "failed": "red",
    "cancelled": "dim",
    "pruned": "dim",
}
goes_on_after_ctrl_c = ""
"""What Ctrl-C leaves, and how to see it; printed as the command ends by it."""
_PIPE_WIDTH = 400
_CONTROLS = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_BEGIN = re.compile(r"! |  +(?:\S+(?: \S+)?  +)?")
_C1 = re.compile(r"[\x7f-\x9f]")


@cache
def console() -> Console:
    """Return the console for results."""
    return _console(sys.stdout)


@cache
def notes() -> Console:
    """Return the console for messages beside the result."""
    return _console(sys.stderr)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def unicode_safe() -> bool:
    # Use the real stdout: a live display replaces it by an object without an encoding.
    encoding = getattr(sys.__stdout__, "encoding", None) or ""
    return encoding.lower().replace("-", "") == "utf8"


def print_json(value: BaseModel | list[Any] | dict[str, Any]) -> None:
    """Print one JSON document, as a type of ``lehr.schemas`` where one exists."""
    document = json.dumps(to_jsonable(value), ensure_ascii=False, indent=2, allow_nan=False)
    typer.echo(escaped_json(document))


def escaped_json(document: str) -> str:
    """Escape the control characters that JSON leaves as they are: DEL and U+0080 to U+009F.

    U+009B controls a terminal as ESC [ does.
    """
    return _C1.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def print_result(value: BaseModel | dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command has done: as JSON, or as a sentence with markup."""
    if as_json:
        print_json(value)
    else:
        console().print(text)


def to_jsonable(value: Any) -> Any:
    """Convert views to dicts, with non-finite numbers as strings, as in the API."""
    if hasattr(value, "model_dump_json"):
        return json.loads(value.model_dump_json())
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {key: to_jsonable(item) for key, item in value.items()}
    return value


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without boxes: a dim head, columns two spaces apart."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


def escaped(text: str) -> str:
    """Escape markup in text from elsewhere (messages, reasons, paths)."""
    from rich.markup import escape

    return escape(without_controls(text))


def without_controls(text: str) -> str:
    """Remove control characters: a training's output must not control the terminal."""
    return _CONTROLS.sub("", text)


def say(text: str) -> None:
    """Print a text as it is to stderr, without control characters."""
    typer.echo(without_controls(text), err=True)


def confirm(question: str) -> None:
    """Ask for confirmation on the terminal; end the command on a no.

    Raises:
        UserError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UserError(
            "confirmation required, but stdin is not a terminal.", hint="Re-run with --yes."
        )
    try:
        agreed = typer.confirm(without_controls(question), err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D.
        raise KeyboardInterrupt from None
    if not agreed:
        notes().print("Cancelled. Nothing was changed.")
        raise typer.Exit(0)


def warn(text: str, *, on: Console | None = None) -> None:
    """Print a warning: marked, and yellow on a terminal. ``on``: not the console for results."""
    (on or console()).print(f"! {text}", style="yellow", markup=False)


def print_alert(alert: AlertView) -> None:
    """Print the name of an alert, and below it why and what to try."""
    warn(alert.title)
    out = console()
    for line in alert.explanation:
        out.print(f"  [dim]{line.name:<6}[/]  {escaped(line.text)}")


def after_ctrl_c(text: str) -> None:
    """Set what is printed if Ctrl-C ends the command from here on."""
    global goes_on_after_ctrl_c  # noqa: PLW0603 - a process runs one command
    goes_on_after_ctrl_c = text


def minute(at: float) -> str:
    """Format seconds since the epoch as local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def state_text(state: str, reason: str | None = None) -> str:
    """Return a state in its colour, as markup, followed by the reason."""
    style = STATE_STYLES.get(state, "")
    text = f"[{style}]{state}[/]" if style else state
    return f"{text}: {escaped(reason)}" if reason else text


def print_error(error: LehrError, *, as_json: bool = False) -> None:
    if as_json:
        problems = map(asdict, error.problems) if isinstance(error, SpecError) else ()
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        print_json({"error": {**fields, "problems": [*problems]}})
        return
    say(str(error))


def _console(file: Any) -> Console:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Cleaning(Console):
        """Removes control characters from every text, whoever wrote it; Rich adds the colours."""

        def print(self, *objects: Any, **options: Any) -> None:
            texts = [without_controls(one) if isinstance(one, str) else one for one in objects]
            if terminal and not options.get("soft_wrap"):
                read = {name: options.pop(name, None) for name in ("markup", "highlight")}
                texts = [self.hung(one, read) if isinstance(one, str) else one for one in texts]
            super().print(*texts, **options)

        def hung(self, text: str, read: dict[str, Any]) -> Text:
            """Wrap lines below where their text begins, after an indentation or a label."""
            lines = []
            for line in self.render_str(text, **read).split("\n", allow_blank=True):
                begin = _BEGIN.match(line.plain)
                hang = begin.end() if begin and begin.end() <= _LEAST else _GAP
                if line.cell_len <= self.width or self.width < 2 * _LEAST:
                    lines.append(line)
                    continue
                first, *more = line[hang:].wrap(self, self.width - hang)
                lines += [line[:hang] + first, *(Text(" " * hang) + one for one in more)]
            return Text("\n").join(lines)

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            """Clean also the texts of tables, trees and panels."""
            for segment in super().render(renderable, options):
                clean = segment.text if segment.control else without_controls(segment.text)
                yield segment if clean == segment.text else Segment(clean, segment.style)

    terminal = file.isatty()
    return Cleaning(
        file=file,
        highlight=False,
        soft_wrap=not terminal,
        # A pipe has no width, so tables are never cut to a guessed width.
        width=None if terminal or "COLUMNS" in os.environ else _PIPE_WIDTH,
        no_color=True if "NO_COLOR" in os.environ else None,
    )


_GAP = 2
_LEAST = 24
"""Characters that a folded column keeps before a column is left out."""


def print_fitting(rows: Table, *, fold: str | tuple[str, ...], spare: Sequence[str] = ()) -> None:
    """Print a table to the console for results, as ``fitting`` makes it."""
    out = console()
    out.print(fitting(rows, out, fold=fold, spare=spare))


def fitting(
    rows: Table, out: Console, *, fold: str | tuple[str, ...], spare: Sequence[str] = ()
) -> Table:
    """Return the table so that each value is whole in the width of ``out``.

    ``fold`` is the column, or more, whose text continues in the next line. Columns of ``spare`` are
    left out where they have no value, and until the others fit, the first one first.
    """
    none, folded = ("", formats.NOTHING), (fold,) if isinstance(fold, str) else fold
    kept = [
        c
        for c in rows.columns
        if c.header not in spare or any(cell not in none for cell in c.cells)
    ]
    for name in spare:
        if _needed(kept, out, folded) <= out.width:
            break
        kept = [column for column in kept if column.header != name]
    made = table()
    made.show_header = rows.show_header
    for column in kept:
        folds = column.header in folded
        made.add_column(
            column.header,
            justify=column.justify,
            no_wrap=not folds,
            overflow="fold" if folds else column.overflow,
        )
    for row, *cells in zip(rows.rows, *(column.cells for column in kept), strict=True):
        made.add_row(*cells, style=row.style)
    return made


def _needed(columns: Sequence[Column], out: Console, folded: tuple[str, ...]) -> int:
    widths = []
    for column in columns:
        widest = max(out.measure(cell).maximum for cell in (column.header, *column.cells))
        widths.append(min(widest, _LEAST) if column.header in folded else widest)
    return sum(widths) + _GAP * (len(widths) - 1)
