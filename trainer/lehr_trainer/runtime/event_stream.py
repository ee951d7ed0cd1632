"""The writer of ``events.jsonl``: one record a line, whole lines only, never rewritten."""

from __future__ import annotations

import errno
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Self

from lehr_trainer.contract.records import Record
from lehr_trainer.errors import DiskFull

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk, or an exhausted quota."""


class EventStream:
    """Appends records to a file; ``EventStream(None)`` writes nothing, for ranks other than 0.

    Each record is one write of one line to an unbuffered file, so a reader sees it at once, and a
    killed process leaves at most its last line incomplete.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file = None if path is None else path.open("ab", buffering=0)
        self._torn = False
        self._lock = threading.Lock()
        self.last_step = 0
        """Highest step of any record: a checkpoint's record may come after later steps' metrics."""

    def write(self, record: Record) -> None:
        """Append ``record``; may be called from any thread.

        Raises:
            DiskFull: there is no space for it.
        """
        with self._lock:
            self.last_step = max(self.last_step, getattr(record, "step", None) or 0)
            if self._file is not None:
                self._append(self._file, record)

    def _append(self, file: FileIO, record: Record) -> None:
        # After a failed write, the incomplete line is ended; readers skip it.
        text = b"\n" * self._torn + record.model_dump_json().encode() + b"\n"
        line = memoryview(text)
        try:
            while line:
                line = line[file.write(line) :]
                self._torn = bool(line)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise DiskFull(f"no space left for a record in {self.path}") from error

    def fsync(self) -> None:
        """Sync to disk, so that records outlast a crash of the machine."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
