"""A display that is redrawn in place, and sends only what has changed: for a slow connection.

A frame is compared with the one before, line by line and part by part. Each frame is one write, and
an equal frame is none, so nothing flickers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment

EVERY_S = 0.5
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """Lines of a terminal, below the cursor as it was at first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[list[Segment]] = []
        self._size = console.size
        self._drawn = False

    def paint(self, frame: RenderableType) -> None:
        """Show a frame: send what differs from the one before."""
        if self._console.size != self._size:
            # The terminal has wrapped or cut the old lines: they are no longer where they were.
            self.erase()
            self._size = self._console.size
        new = self._console.render_lines(
            frame, self._console.options.update(height=None), pad=False
        )[: max(self._size.height - 1, 1)]
        out = [] if self._drawn else [_HIDE]
        row = max(len(self._lines) - 1, 0)
        for number in range(max(len(new), len(self._lines))):
            line = _trimmed(new[number]) if number < len(new) else []
            old = self._lines[number] if number < len(self._lines) else None
            if line == old:
                continue
            if old is None:
                # A line feed at the bottom of the terminal scrolls; a cursor movement would not.
                out.append(_to(row, len(self._lines) - 1) if self._lines else "")
                out.append("\r\n" if self._lines or number else "")
                self._lines.append([])
                row, old = number, []
            out.append(_to(row, number))
            row = number
            out.append(self._changes(old, line))
            self._lines[number] = line
        if len(new) < len(self._lines):
            # The cursor rests on the last line of the frame.
            out.append(_to(row, max(len(new) - 1, 0)))
            row = max(len(new) - 1, 0)
            del self._lines[max(len(new), 1) :]
        if text := "".join(out):
            if self._lines:
                text += _to(row, len(self._lines) - 1)
            self._write(text)
            self._drawn = True

    def erase(self) -> None:
        """Remove the frame, so that the next output begins where it began."""
        if self._drawn:
            up = _to(max(len(self._lines) - 1, 0), 0)
            self._write(f"{up}\r\x1b[J{_SHOW}")
        self._lines, self._drawn = [], False

    def _changes(self, old: list[Segment], new: list[Segment]) -> str:
        """Return what turns a line into another, from its first to its last part that differs."""
        first = 0
        while first < min(len(old), len(new)) and old[first] == new[first]:
            first += 1
        last = 0
        same_width = _width(old) == _width(new)
        while (
            same_width
            and last < min(len(old), len(new)) - first
            and old[-1 - last] == new[-1 - last]
        ):
            last += 1
        changed = new[first : len(new) - last]
        column = _width(new[:first])
        to = f"\x1b[{column + 1}G" if column else "\r"
        clear = "\x1b[K" if _width(new) < _width(old) else ""
        return to + self._text(changed) + clear

    def _text(self, parts: list[Segment]) -> str:
        system = self._console._color_system  # noqa: SLF001 - rich has no public name for it
        return "".join(
            part.style.render(part.text, color_system=system) if part.style else part.text
            for part in parts
        )

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


@contextmanager
def live(console: Console, frame: Callable[[], RenderableType]) -> Iterator[None]:
    """Repaint ``frame`` twice a second, and erase it at the end."""
    screen, stop = Screen(console), threading.Event()

    def repaint() -> None:
        while True:
            screen.paint(frame())
            if stop.wait(EVERY_S):
                return

    thread = threading.Thread(target=repaint, name="screen", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        screen.erase()


def _to(row: int, wanted: int) -> str:
    """Return the movement of the cursor between rows."""
    if row == wanted:
        return ""
    return f"\x1b[{row - wanted}A" if wanted < row else f"\x1b[{wanted - row}B"


def _width(parts: list[Segment]) -> int:
    return sum(part.cell_length for part in parts)


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Return the line in words, without spaces at its end and without control codes.

    Words are what is compared: a figure that changes costs its own length, not that of its line.
    """
    from rich.segment import Segment

    parts: list[Segment] = []
    for part in line:
        if part.control or not part.text:
            continue
        parts += [Segment(word, part.style) for word in _words(part.text)]
    while (
        parts and not parts[-1].text.strip() and not (parts[-1].style and parts[-1].style.bgcolor)
    ):
        parts.pop()
    return parts


def _words(text: str) -> list[str]:
    """Split a text after each run of spaces."""
    found, begin = [], 0
    for at in range(1, len(text)):
        if text[at] != " " and text[at - 1] == " ":
            found.append(text[begin:at])
            begin = at
    return [*found, text[begin:]]
