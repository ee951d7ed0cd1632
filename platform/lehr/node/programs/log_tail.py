"""Read what the program has logged since the last look, by the first way it uses: ``lehr_log``,
W&B's offline records, TensorBoard's event files, or the ``metrics.csv`` of Lightning's CSVLogger;
or, with ``trainer.prints``, by its output alone.

Files are read again from their start when they have grown, and only new rows are passed on. The
pause between two readings grows with the time that one takes. What the program did not write is not
read: files of its project, and files that a checkpoint has put back.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import StrictInt, TypeAdapter, ValidationError

from lehr.analysis.curve_files import binary, text
from lehr.analysis.curve_files.collector import CurveRow, Points
from lehr.analysis.curve_files.printed import GrowingFile, ProgramOutput
from lehr.base.formats import listed
from lehr.errors import UserError
from lehr.node.programs.keeper import Keeper
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import LONGEST_NAME, Recorder
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import LATEST

_PAUSE_S = 1.0
_SHARE = 20.0  # Reading takes at most one part of this many of the time.
_MOST_FILES = 50
_TIME = "_timestamp"  # The time of a row among W&B's own values.


class FileSource:
    """The rows of the files of one kind below a folder, each with its time.

    Rows of a file without times are spread over the time in which it has grown by them.
    """

    code = "unreadable_log"

    def __init__(self, folder: Path, pattern: str, read: Callable[[Path], Points]) -> None:
        self._folder, self._pattern, self._read = folder, pattern, read
        self._passed: Counter[Path] = Counter()
        self._sizes: dict[Path, int] = {}
        self._changed: dict[Path, float] = {}
        self._there = {path: path.lstat().st_mtime_ns for path in folder.rglob(pattern)}
        self._due = 0.0
        self.problem: str | None = None  # Why a file could not be read.

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
        rows = (point for point in self._read(path) if isinstance(point, CurveRow))
        for row in islice(rows, self._passed[path], None):
            self._passed[path] += 1
            yield row


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


_LONGEST_WARNING = 1_000
_LARGEST_WHOLE = 10**300  # Larger whole numbers do not fit into a float.
_FILES = TypeAdapter(dict[str, tuple[StrictInt, StrictInt]])
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
        self.file = GrowingFile(path)
        self._recorder, self._keep = recorder, keep
        self._only_prints = only_prints
        self.used = False  # Whether it has metrics.
        self.end: dict[str, Any] | None = None
        """The program's own record of its end, after which nothing is read."""

    def take(self, lines: Sequence[bytes]) -> None:
        """Record these lines."""
        for line in lines:
            if self.end is None:
                self._take(line)

    def _take(self, line: bytes) -> None:
        recorder = self._recorder
        record = _parse(line)
        match record or {}:
            case {"kind": "metrics", "step": step, "time": at, "values": dict(values)}:
                if self._only_prints:
                    left_out = "what it logs is left out: trainer.prints is given"
                    recorder.warn("only_prints", left_out)
                else:
                    self.used = True
                    recorder.metrics(step, _floats(values), at)
            case {"kind": "end", "outcome": "completed" | "failed" | "stopped"}:
                self.end = record
            case {"kind": "checkpoint", "step": step, "path": str(path), **others}:
                if self._keep is not None:
                    self._keep(path, step, _file_states(others.get("files")))
            case {"kind": "validation_data", "step": step, "time": at, "digest": str(digest)} if (
                re.fullmatch("[0-9a-f]{64}", digest)
            ):
                recorder.held_out(step, {"validation_digest": digest}, at)
            case {"kind": "validation_data", "step": step, "time": at, "tasks": dict(tasks)} if all(
                re.fullmatch("[0-9a-f]{64}", str(digest)) for digest in tasks.values()
            ):
                recorder.held_out(step, {"tasks": tasks}, at)
            case {"kind": "config", "values": dict(values)}:
                recorder.config(values)
            case {"kind": "media"}:
                recorder.media(record or {})
            case {"kind": "warning", "message": str(message)}:
                recorder.warn("media", recorder.hide(message[:_LONGEST_WARNING]), most=_NAMED)
            case {"kind": "left_out", "values": dict(values)}:
                names = listed([recorder.hide(name)[:LONGEST_NAME] for name in values], _NAMED)
                recorder.warn("left_out", f"wandb: not recorded: {names}", most=_NAMED)
            case _:
                if line.strip():
                    recorder.warn("bad_line", "a line of the log is not a record; it was skipped")


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a line of ``lehr_log`` with a whole step and a possible time; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and type(record.get("step")) is int:
            at = record.get("time")
            if not isinstance(at, int | float) or not 0 <= at < LATEST:
                at = time.time()
            return {**record, "time": float(at)}
    return None


def _floats(values: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, float) or (type(value) is int and abs(value) < _LARGEST_WHOLE)
    }


def _file_states(files: Any) -> dict[str, tuple[int, int]] | None:
    """Return size and time of each declared file; None if a value is something else."""
    with contextlib.suppress(ValidationError):
        return _FILES.validate_python(files)
    return None


class LogTail:
    """``lehr_log`` goes before W&B's records, then TensorBoard's, and a CSV file comes last:
    programs that log by several ways log the same values. With ``prints``, the output is all.
    """

    def __init__(
        self, place: ProgramDir, recorder: Recorder, saves: Keeper, prints: Sequence[str] = ()
    ) -> None:
        only_prints = bool(prints)
        self._log = DirectLog(place.log_file(0), recorder, saves.request, only_prints=only_prints)
        self._recorder = recorder
        self.output: ProgramOutput | None = None
        if prints:
            printed_log = layout.rank_log(place.attempt_dir, 0)
            self.output = ProgramOutput(printed_log, prints, recorder.step)
        self._sources = [self.output] if self.output else sources(place.folder, place.wandb)
        self._used: FileSource | ProgramOutput | None = None

    def read(self, *, fully: bool = False) -> None:
        """Record what is new; ``fully``: all that is there now, without a pause."""
        try:
            for lines in self._log.file.pieces(now=fully):
                self._log.take(lines)
        except OSError as error:  # A pipe in its place, or a folder.
            self._recorder.warn("unreadable_log", f"{error.filename}: {error.strerror}")
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
