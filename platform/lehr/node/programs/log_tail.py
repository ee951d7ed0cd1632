"""Read what the program has logged since the last look, by the first way that it uses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from lehr.base.formats import listed
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import LONGEST_NAME, Recorder, parse_line
from lehr.node.programs.sources import FileSource, csv_source, tensorboard_source, wandb_source
from lehr_trainer.files import open_regular

_PIECE = 4 << 20
_LONGEST_LINE = 1 << 20
_NAMED = 20
"""Things left out that a warning names; so many warnings may name more than the one before."""


def _is_metric(name: str) -> bool:
    # Lightning's TensorBoardLogger writes a hp_metric of -1 at step 0 of each attempt.
    return not name.startswith("_") and name != "hp_metric"


class Saves(Protocol):
    def request(
        self, path: str, step: int, declared: Mapping[str, tuple[int, int]] | None
    ) -> None: ...


class LogTail:
    """``lehr_log`` goes before W&B's records, then TensorBoard's, and a CSV file comes last:
    programs that log by several ways log the same values.
    """

    def __init__(self, place: ProgramDir, recorder: Recorder, saves: Saves) -> None:
        self._path = place.log_file(0)
        self._recorder, self._saves = recorder, saves
        self._offset = 0
        self._rest = b""
        self._direct = False
        self._sources: list[FileSource] = [
            wandb_source(place.wandb),
            tensorboard_source(place.folder),
            csv_source(place.folder),
        ]
        self._used: FileSource | None = None

    def read(self, *, fully: bool = False) -> None:
        """Record what is new; ``fully``: all that is there now, without a pause."""
        # Processes that the program has left behind may write for ever.
        end = self._size() if fully else 0
        while self._read_piece() and self._offset < end:
            pass
        if self._direct:
            return
        for source in [self._used] if self._used else self._sources:
            for row in source.rows(now=fully):
                self._used = source
                at = row.at or time.time()
                values = {name: v for name, v in row.values.items() if _is_metric(name)}
                if values:
                    self._recorder.metrics(row.step, values, at)
            if source.problem:
                self._recorder.warn("unreadable_log", source.problem)
            if self._used:
                return

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _read_piece(self) -> bool:
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                piece = file.read(_PIECE)
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
            self._take(line)
        return bool(piece)

    def _take(self, line: bytes) -> None:
        record = parse_line(line)
        if record is None:
            if line.strip():
                self._recorder.warn("bad_line", "a line of the log is not a record; it was skipped")
        elif record["kind"] == "checkpoint":
            self._saves.request(record["path"], record["step"], record["files"])
        elif record["kind"] == "validation_data":
            self._recorder.held_out(record["step"], record["digest"], float(record["time"]))
        elif record["kind"] == "config":
            self._recorder.config(record["values"])
        elif record["kind"] == "left_out":
            names = listed(
                [self._recorder.hide(name)[:LONGEST_NAME] for name in record["values"]], _NAMED
            )
            self._recorder.warn("left_out", f"wandb: not recorded: {names}", most=_NAMED)
        else:
            self._direct = True
            self._recorder.metrics(record["step"], record["values"], float(record["time"]))
