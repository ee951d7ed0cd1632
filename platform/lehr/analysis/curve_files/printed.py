"""What a program prints: patterns of ``trainer.prints`` for lines of a log or of its source, and
the values of its output.
"""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from lehr.analysis.curve_files.collector import CurveRow
from lehr.analysis.curve_files.names import metric_of
from lehr.base.formats import listed
from lehr.specs.prints import NUMBER, STEP, PrintedLines, plain
from lehr_log.steps import NAMES
from lehr_trainer.files import open_regular

_NUMBER = re.compile(rf"(?<![\w.])(?:{NUMBER})")
_LABEL = re.compile(r"""([A-Za-z][\w/.-]*(?: [A-Za-z][\w/.-]*)?)["']?[\s:=]*[\[(]?\s*$""")
_HELD_OUT = re.compile(r"\b(val|valid|validation|eval|test)\b", re.IGNORECASE)
_SCORES = ("loss", "accuracy", "acc", "perplexity", "ppl", "error")
_FORMATTED = re.compile(r"%[-+ 0#]*[\d.*]*[a-zA-Z]|\{[^{}]*\}")
_PRINTS = re.compile(r"(print|log|info|write)\w*$", re.IGNORECASE)
_MOST = 5


def source_lines(source: str) -> Iterator[str]:
    """Yield texts that Python source may print, with 1 in place of each value. Nothing is run."""
    waiting: list[ast.AST] = []
    with suppress(SyntaxError, ValueError, RecursionError):
        waiting.append(ast.parse(source))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and _PRINTS.search(ast.unparse(node.func)):
            yield from " ".join(map(_shown, node.args)).splitlines()
        elif isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            yield from _shown(node).splitlines()
        else:
            waiting += reversed([*ast.iter_child_nodes(node)])


def _shown(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return _FORMATTED.sub("1", text).replace("%%", "%")
        case ast.JoinedStr(values=parts):
            # Its own braces and percents are text already.
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "1" for p in parts)
        case ast.BinOp(op=ast.Mod(), left=left):
            return _shown(left)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _shown(left) + _shown(right)
        case ast.Call(func=ast.Attribute(attr="format", value=text)):
            return _shown(text)
    return "1"


def unprinted(prints: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return the patterns that match no text of Python sources; none if there is no source."""
    lines = PrintedLines(prints)
    for line in chain.from_iterable(map(source_lines, sources)):
        lines.row(line)
    return lines.unmatched if sources else []


def propose(lines: Iterable[str]) -> list[str]:
    """Return patterns of the lines with metrics, the most frequent first, of validation last.

    If some of the lines have a usual metric, such as a loss, only those count.
    """
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for line in lines:
        text, names = _pattern(plain(line).strip())
        metrics = names - {STEP, "epoch"}
        usual = any("loss" in name or metric_of(name) is not None for name in metrics)
        if usual or (metrics and STEP in names):
            counts[usual][text] += 1
    texts = [text for text, _ in (counts[True] or counts[False]).most_common()]
    if not any("{val/" in text for text in texts):  # The only held-out set, as of MNIST's example.
        texts = [text.replace("{test/", "{val/") for text in texts]
    if any("{loss}" in text for text in texts):
        # The loss of each step is the curve, not the mean that an evaluation prints beside its own.
        own = ("{train/loss}", "{eval/train_loss}")
        texts = [text.replace(*own) if "{val/" in text else text for text in texts]
    held_out = re.compile(r"(?!.*\{step\}).*\{(val|test)/")
    return sorted(texts, key=lambda text: held_out.match(text) is not None)[:_MOST]


def _pattern(line: str) -> tuple[str, set[str]]:
    """Return a line with fields for its numbers, from its first name on, and their names."""
    text, done = "", ""
    names: set[str] = set()
    end = 0
    for number in _NUMBER.finditer(line):
        between = line[end : number.start()]
        label = _LABEL.search(re.sub(r"^[^\s,;|]+", "", between) if end else between)
        name = _name(label[1], line[: number.start()]) if label else ""
        if not name and re.search(r"\|\s*$", between) and line[number.end() :][:1] == "/":
            name = STEP  # Of a progress bar: | 10/100 [
        name = "" if name in names else name
        if name and not names:
            between = label[0] if label else ""
        if name or names:
            text += between.replace("{", "{{").replace("}", "}}") + f"{{{name}}}"
        if name:
            names.add(name)
            unit = re.match(r"[A-Za-z/]*[A-Za-z%]|", line[number.end() :])
            done = text + (unit[0] if unit else "")
        end = number.end()
    return re.sub(r"\s+", " ", done), names


def _name(label: str, before: str) -> str:
    words = label.lower().split()
    if words[-1] in NAMES:
        return STEP
    sets = _HELD_OUT.findall(before)
    if words[-1] in _SCORES and sets and sets[-1].lower() == "test":
        return f"test/{words[-1]}"
    known = metric_of("_".join(words)) if words[1:] else None
    if known is not None:
        return known[0]
    if words[-1] in _SCORES and sets:
        return f"val/{words[-1]}"
    return words[-1].strip("./-")


_NAMED = 20  # Patterns that a warning names.
_PIECE = 4 << 20
_LONGEST_LINE = 1 << 20


class GrowingFile:
    """A file of which each line is read once. A line that is too long is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0  # Bytes that have been read.
        self._rest = b""

    @property
    def position(self) -> int:
        """Return the bytes that have been read, in whole lines."""
        return self.offset - len(self._rest)

    def split(self, piece: bytes) -> list[bytes]:
        """Return the lines that the next bytes complete."""
        *lines, self._rest = (self._rest + piece).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        return lines

    def piece(self, end: int | None = None) -> list[bytes] | None:
        """Return the lines that a piece more completes; None at ``end`` or that of the file."""
        try:
            with open_regular(self._path) as file:
                file.seek(self.offset)
                piece = file.read(_PIECE if end is None else min(_PIECE, end - self.offset))
        except FileNotFoundError:
            return None
        self.offset += len(piece)
        return self.split(piece) if piece else None

    def pieces(self, *, now: bool) -> Iterator[list[bytes]]:
        """Yield the lines of one piece, or ``now`` of all that is there."""
        # Processes that the program has left behind may write for ever.
        end = self._path.stat().st_size if now and self._path.exists() else 0
        while (lines := self.piece()) is not None:
            yield lines
            if self.offset >= end:
                break


_FIRST_LINES = 1_000  # If no pattern matches one of so many lines, the run has a warning.


class ProgramOutput:
    """What the program prints, read by ``trainer.prints``."""

    code = "no_line_matches"

    def __init__(self, path: Path, prints: Sequence[str], step: int = 0) -> None:
        self.file = GrowingFile(path)
        self._prints = list(prints)
        self._lines = PrintedLines(prints, step)
        self._looked = time.time()
        self._first: list[str] = []
        self.problem: str | None = None  # That none of the first lines matches a pattern.

    def rows(self, *, now: bool = False) -> Iterator[CurveRow]:
        """Yield the values of new lines, ``now`` of all that are there."""
        for lines in self.file.pieces(now=now):
            yield from self.values(lines)
        if len(self._first) == _FIRST_LINES and self._lines.unmatched == self._prints:
            self.problem = self.problem or self.unmatched()

    def values(self, lines: Sequence[bytes]) -> Iterator[CurveRow]:
        """Yield the values of lines, which are spread over the time since the last look."""
        began, self._looked = self._looked, time.time()
        for number, line in enumerate(lines, 1):
            text = line.decode("utf-8", "replace")
            if text and len(self._first) < _FIRST_LINES:
                self._first.append(plain(text))
            if row := self._lines.row(text):
                at = began + (self._looked - began) * number / len(lines)
                yield CurveRow(*row, number, at)

    def unmatched(self) -> str | None:
        """Return which patterns match no line, and what would; None if each matches one."""
        if not self._lines.unmatched:
            return None
        better = ", ".join(map(repr, propose(self._first)))
        advice = f"; its lines suggest {better}" if better else ""
        return f"trainer.prints: no line matches {listed(self._lines.unmatched, _NAMED)}{advice}"
