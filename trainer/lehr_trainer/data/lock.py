"""A lock under which one process prepares a corpus; the others wait and show its progress."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lehr_trainer.contract.records import Notify
from lehr_trainer.data.corpora import CorpusReader
from lehr_trainer.data.shards import CorpusPosition
from lehr_trainer.errors import BadData
from lehr_trainer.files import wait_for_lock

_WRITE_EVERY_S = 2.0


class PreparationLock:
    """An exclusive ``flock`` on a file that names its holder and the holder's progress.

    The kernel releases it when the holder dies, so a waiter takes over.
    """

    def __init__(self, path: Path, file: int, started_by: str) -> None:
        self._path = path
        self._file = file
        self._started_by = started_by

    def report(self, done: float | None) -> None:
        """Write progress to the lock file, for those who wait."""
        content = {"pid": os.getpid(), "host": socket.gethostname(), "done": done}
        text = json.dumps({**content, "started_by": self._started_by}).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))


@contextlib.contextmanager
def preparation_lock(path: Path, notify: Notify, *, started_by: str) -> Iterator[PreparationLock]:
    """Hold the lock at ``path``; a process that waited must check whether the work is done.

    Raises:
        BadData: the lock file cannot be made (a folder that may not be written).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadData(
            f"prepared data cannot be written to {path.parent} ({error.strerror}); set LEHR_DATA "
            "to a folder that can be"
        ) from None
    try:
        wait_for_lock(file, lambda _waited: notify(PHASE, *_holder(path)), _WRITE_EVERY_S)
        lock = PreparationLock(path, file, started_by)
        lock.report(None)
        yield lock
    finally:
        os.close(file)


def _holder(path: Path) -> tuple[str, float | None]:
    """Return ``waits for pid 123 (run abc), which prepares the data: 43 %`` and 0.43."""
    try:
        content = json.loads(path.read_bytes())
        pid, host, by, done = (content[key] for key in ("pid", "host", "started_by", "done"))
    except (OSError, ValueError, KeyError, TypeError):
        return "waits for another process, which prepares the data", None
    where = "" if host == socket.gethostname() else f" on {host}"
    who = f"waits for pid {pid}{where}" + (f", started by {by}" if by else "")
    share = "" if done is None else f": {done:.0%}".replace("%", " %")
    return f"{who}, which prepares the data{share}", done


PHASE = "data"
_REPORT_EVERY_S = 0.5


class Meter:
    """Counts written tokens and reports, twice a second: tokens, speed, share done."""

    def __init__(
        self,
        corpus: CorpusReader,
        max_tokens: int | None,
        notify: Notify,
        on_share: Callable[[float | None], None],
    ) -> None:
        self._notify, self._on_share = notify, on_share
        self._max_tokens = max_tokens
        sizes = [corpus.size(source) for source in range(corpus.sources())]
        known = [size for size in sizes if size is not None]
        self._sizes = known if len(known) == len(sizes) else None
        self._began = self._reported = time.monotonic()
        self._source, self._in_source = 0, 0
        self._tokens = 0

    def count(self, tokens: int, text_bytes: int, then: CorpusPosition, written: int) -> None:
        """Count a batch that was written; the corpus has been read up to ``then``."""
        self._tokens += tokens
        if then.source != self._source:
            self._source, self._in_source = then.source, 0
        else:
            self._in_source += text_bytes
        now = time.monotonic()
        if now - self._reported < _REPORT_EVERY_S:
            return
        self._reported = now
        done = self._done(written)
        speed = self._tokens / (now - self._began)
        self._notify(PHASE, f"tokenized {amount(written)}, {amount(speed)}/s", done)
        self._on_share(done)

    def summary(self, train: int, held_out: int) -> None:
        """Report the end of preparation."""
        elapsed = max(time.monotonic() - self._began, 1e-6)
        self._notify(
            PHASE,
            f"prepared {amount(train)} to train on and {amount(held_out)} held out "
            f"in {elapsed:.1f} s ({amount(self._tokens / elapsed)}/s)",
            1.0,
        )

    def _done(self, written: int) -> float | None:
        shares = []
        if self._max_tokens is not None:
            shares.append(written / self._max_tokens)
        if self._sizes:
            # Text may be larger than the file it is packed in: no source counts for more.
            here = min(self._in_source, sum(self._sizes[self._source : self._source + 1]))
            shares.append((sum(self._sizes[: self._source]) + here) / max(1, sum(self._sizes)))
        return min(1.0, max(shares)) if shares else None


def amount(tokens: float) -> str:
    """Format with three significant digits or so: 11.9M tokens, 42.3k tokens, 512 tokens."""
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        # 999.95k would be written as "1,000.0k".
        if tokens >= limit * (1 - 5e-5):
            return f"{tokens / limit:,.1f}{suffix} tokens"
    return f"{tokens:.0f} tokens"
