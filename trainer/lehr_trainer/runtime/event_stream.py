"""The writer of ``events.jsonl``: one record a line, whole lines only, never rewritten."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
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


VARIABLE = "LEHR_SYSTEM"
"""Path of the file; an attempt has it in its environment."""
EVERY_S = 10.0
FRESH_S = 20.0
"""An older sample is outdated: its agent has ended, or its disk hangs."""


class SystemSamples:
    """Reads what this node and the GPUs of this process do, as values of records: ``system/...``.

    The node's agent measures them and writes its newest sample to a file, so no training waits for
    a driver. Of a run on several nodes, the first node is recorded: rank 0 writes the records.
    """

    def __init__(self) -> None:
        self._path = os.environ.get(VARIABLE)
        self._gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        self._next = 0.0
        self.clock_mhz = math.nan
        """Of the GPU of this rank, as last measured; NaN if it is not known."""

    def due(self) -> dict[str, float]:
        """Return the values for a record that is written now; none within ``EVERY_S`` of others.

        The GPUs of the run are counted from 0: ``system/gpu0_utilization``.
        """
        if self._path is None or (now := time.monotonic()) < self._next:
            return {}
        self._next = now + EVERY_S
        self.clock_mhz = math.nan
        try:
            if time.time() - Path(self._path).stat().st_mtime > FRESH_S:
                return {}
            sample = json.loads(Path(self._path).read_bytes())
            host = {f"system/{name}": value for name, value in sample["host"].items()}
            gpus = {
                f"system/gpu{number}_{name}": value
                for number, index in enumerate(self._gpus)
                for name, value in sample["gpus"].get(index, {}).items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}
        values = {
            name: float(value)
            for name, value in (host | gpus).items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        own = os.environ.get("LOCAL_RANK", "0")
        self.clock_mhz = values.get(f"system/gpu{own}_clock_mhz", math.nan)
        return values
