"""Read what the program has logged since the last look, by the first way it uses: ``lehr_log``,
W&B's offline records, TensorBoard's event files, or the ``metrics.csv`` of Lightning's CSVLogger;
or, with ``trainer.prints``, by its output alone.

Files are read again from their start when they have grown, and only new rows are passed on. The
pause between two readings grows with the time that one takes. What the program did not write is not
read: files of its project, and files that a checkpoint has put back.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files import binary, printed, text
from lehr.analysis.curve_files.collector import CurveRow, Points
from lehr.base.formats import listed
from lehr.errors import UserError
from lehr.node.programs.keeper import Keeper
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import LONGEST_NAME, Recorder, parse_line
from lehr.specs.prints import PrintedLines, plain
from lehr_trainer.contract import layout
from lehr_trainer.files import open_regular

_PAUSE_S = 1.0
_SHARE = 20.0
"""Reading takes at most one part of this many of the time."""
_MOST_FILES = 50
_TIME = "_timestamp"
"""The time of a row among W&B's own values."""


class FileSource:
    """The rows of the files of one kind below a folder, each with its time.

    Rows of a file without times are spread over the time in which it has grown by them.
    """

    code = "unreadable_log"

    def __init__(self, folder: Path, pattern: str, read: Callable[[Path], Points]) -> None:
        self._folder, self._pattern, self._read = folder, pattern, read
        self._passed: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._changed: dict[Path, float] = {}
        self._there = {path: path.lstat().st_mtime_ns for path in folder.rglob(pattern)}
        self._due = 0.0
        self.problem: str | None = None
        """Why a file could not be read."""

    def rows(self, *, now: bool = False) -> Iterator[CurveRow]:
        """Yield rows that were not yielded before; ``now`` does not wait for the pause."""
        began = time.monotonic()
        if not now and began < self._due:
            return
        for path in self._paths():
            try:
                status = path.lstat()
                ours = stat.S_ISREG(status.st_mode) and status.st_mtime_ns != self._there.get(path)
                if not ours or status.st_size == self._sizes.get(path):
                    continue
                self._sizes[path] = status.st_size
                yield from self._timed(path, status.st_mtime)
            except UserError as error:
                self.problem = error.message
            except OSError as error:
                self.problem = f"{path}: {error.strerror}"
        self._due = time.monotonic() + max(_PAUSE_S, _SHARE * (time.monotonic() - began))

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.rglob(self._pattern))[:_MOST_FILES]
        except OSError:
            return []  # A folder was removed meanwhile: the next look finds the others.

    def _timed(self, path: Path, changed: float) -> Iterator[CurveRow]:
        began = self._changed.get(path, changed)
        self._changed[path] = changed
        waiting: list[CurveRow] = []
        for row in self._new(path):
            at = row.at or row.values.get(_TIME)
            if at is not None:
                yield row._replace(at=at)
            else:
                waiting.append(row)
        for number, row in enumerate(waiting, 1):
            yield row._replace(at=began + (changed - began) * number / len(waiting))

    def _new(self, path: Path) -> Iterator[CurveRow]:
        passed = self._passed.get(path, 0)
        for count, point in enumerate(p for p in self._read(path) if isinstance(p, CurveRow)):
            if count >= passed:
                self._passed[path] = count + 1
                yield point


def sources(folder: Path, wandb: Path) -> list[FileSource]:
    """Return where a program may log without ``lehr_log``, the first to look at first."""

    def events(path: Path) -> Points:
        return binary.tensorboard_points([path])

    def rows(path: Path) -> Points:
        return text.csv_points(path, lambda _name: True, set(), growing=True)

    return [
        FileSource(wandb, binary.WANDB, binary.wandb_points),
        FileSource(folder, binary.TENSORBOARD, events),
        FileSource(folder, "metrics.csv", rows),
    ]


_FIRST_LINES = 1_000
"""If no pattern matches one of so many lines, the run has a warning."""


class ProgramOutput:
    """What the program prints, read by ``trainer.prints``."""

    code = "no_line_matches"

    def __init__(self, path: Path, lines: PrintedLines) -> None:
        self._path, self._lines = path, lines
        self.offset = 0
        """Bytes of the log that are read, or that are not the program's."""
        self._rest = b""
        self._looked = time.time()
        self._first: list[str] = []
        self.problem: str | None = None
        """That none of the first lines matches a pattern."""

    def rows(self, *, now: bool = False) -> Iterator[CurveRow]:
        """Yield the values of new lines, which are spread over the time since the last look.

        ``now``: of all lines that are there, else of at most 4 MiB.
        """
        with open_regular(self._path) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(self.offset)
            while piece := file.read(min(_PIECE, end - self.offset)):
                self.offset += len(piece)
                yield from self._values(piece)
                if not now:
                    break
        if len(self._first) == _FIRST_LINES and not self._lines.matched:
            self.problem = self.problem or self.unmatched()

    def _values(self, piece: bytes) -> Iterator[CurveRow]:
        began, self._looked = self._looked, time.time()
        *lines, rest = (self._rest + piece).replace(b"\r", b"\n").split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
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
        better = ", ".join(map(repr, printed.propose(self._first)))
        advice = f"; its lines suggest {better}" if better else ""
        return f"trainer.prints: no line matches {listed(self._lines.unmatched, _NAMED)}{advice}"


_PIECE = 4 << 20
_LONGEST_LINE = 1 << 20
_LONGEST_WARNING = 1_000
_NAMED = 20
"""Things left out that a warning names; so many warnings may name more than the one before."""


def _is_metric(name: str) -> bool:
    # Lightning's TensorBoardLogger writes a hp_metric of -1 at step 0 of each attempt.
    return not name.startswith("_") and name != "hp_metric"


class DirectLog:
    """What a program logs by ``lehr_log``: lines of one file, each read once."""

    def __init__(
        self,
        path: Path,
        recorder: Recorder,
        keep: Callable[[str, int, dict[str, tuple[int, int]] | None], None] | None = None,
        *,
        only_prints: bool = False,
    ) -> None:
        """``keep`` is called with path, step and files of each checkpoint; None: none is kept."""
        self._path, self._recorder, self._keep = path, recorder, keep
        self._only_prints = only_prints
        self._offset = 0
        self._rest = b""
        self.used = False
        """Whether it has metrics."""
        self.end: dict[str, Any] | None = None
        """The program's own record of its end, after which nothing is read."""

    @property
    def position(self) -> int:
        """Return the bytes that have been read, in whole lines."""
        return self._offset - len(self._rest)

    def read(self, *, fully: bool = False) -> None:
        """Record what is new: one piece, or all that is there now."""
        # Processes that the program has left behind may write for ever.
        end = self.size() if fully else 0
        while self.read_piece() and self._offset < end:
            pass

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_piece(self, most: int = _PIECE) -> bool:
        """Record at most so many bytes more; return whether there were any."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                piece = file.read(most)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._recorder.warn("unreadable_log", f"{self._path}: {error.strerror}")
            return False
        self._offset += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        for line in lines:
            if self.end is None:
                self._take(line)
        return bool(piece)

    def _take(self, line: bytes) -> None:
        record = parse_line(line)
        if record is None:
            if line.strip():
                self._recorder.warn("bad_line", "a line of the log is not a record; it was skipped")
        elif record["kind"] == "end":
            self.end = record
        elif record["kind"] == "checkpoint":
            if self._keep is not None:
                self._keep(record["path"], record["step"], record["files"])
        elif record["kind"] == "validation_data":
            self._recorder.held_out(record["step"], record["digest"], float(record["time"]))
        elif record["kind"] == "config":
            self._recorder.config(record["values"])
        elif record["kind"] == "media":
            self._recorder.media(record)
        elif record["kind"] == "warning":
            text = self._recorder.hide(str(record.get("message"))[:_LONGEST_WARNING])
            self._recorder.warn("media", text, most=_NAMED)
        elif record["kind"] == "left_out":
            names = listed(
                [self._recorder.hide(name)[:LONGEST_NAME] for name in record["values"]], _NAMED
            )
            self._recorder.warn("left_out", f"wandb: not recorded: {names}", most=_NAMED)
        elif self._only_prints:
            self._recorder.warn("only_prints", "what it logs is left out: trainer.prints is given")
        else:
            self.used = True
            self._recorder.metrics(record["step"], record["values"], float(record["time"]))


class LogTail:
    """``lehr_log`` goes before W&B's records, then TensorBoard's, and a CSV file comes last:
    programs that log by several ways log the same values. With ``prints``, the output is all.
    """

    def __init__(
        self, place: ProgramDir, recorder: Recorder, saves: Keeper, prints: Sequence[str] = ()
    ) -> None:
        log = place.log_file(0)
        self._log = DirectLog(log, recorder, saves.request, only_prints=bool(prints))
        self._recorder = recorder
        self.output: ProgramOutput | None = None
        if prints:
            lines = PrintedLines(prints, recorder.step)
            self.output = ProgramOutput(layout.rank_log(place.attempt_dir, 0), lines)
        self._sources = [self.output] if self.output else sources(place.folder, place.wandb)
        self._used: FileSource | ProgramOutput | None = None

    def read(self, *, fully: bool = False) -> None:
        """Record what is new; ``fully``: all that is there now, without a pause."""
        self._log.read(fully=fully)
        if self._log.used:
            return
        for source in [self._used] if self._used else self._sources:
            for row in source.rows(now=fully):
                self._used = source
                at = row.at or time.time()
                values = {name: v for name, v in row.values.items() if _is_metric(name)}
                if values:
                    self._recorder.metrics(row.step, values, at)
            if source.problem:
                self._recorder.warn(source.code, self._recorder.hide(source.problem))
            if self._used:
                return
