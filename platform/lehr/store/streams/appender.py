"""The one thread that writes all streams; appends that arrive together are flushed together.

Each caller receives its result through a callback. While one group is flushed to disk, the next one
gathers (group commit). So many trainers share each flush.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from lehr.base import killpoints
from lehr.errors import InternalError, LehrError, OffsetMismatch, StoreUnavailable, UserError
from lehr.store.database import Wal
from lehr.store.streams import limits
from lehr.store.streams.indexer import IndexedStream, Indexer
from lehr.store.streams.replica import FLUSHERS, Gap, Replica, Writing, is_events
from lehr_trainer.contract import layout

_GROUP_BYTES = 32 << 20
_GROUP_PIECES = 256
"""Each is a file that stays open until the flush; a process may often open only 1,024."""
_MUST_SEAL = 4096  # From this many unsealed metrics on, they are sealed even while appends arrive.
_REST_EVERY_S = 600.0  # How often the databases are maintained, whether appends arrive or not.

_log = logging.getLogger("lehr.store")
T = TypeVar("T")


Answer = Callable[[int | LehrError], None]
"""Receives the new end of the stream, or why nothing was appended. It must be quick."""


class EndOfStream(Future[int]):
    """The new end of a stream, for a thread that waits for it."""

    def answer(self, result: int | LehrError) -> None:
        if isinstance(result, int):
            self.set_result(result)
        else:
            self.set_exception(result)


@dataclass(frozen=True)
class _Append:
    attempt_id: str
    name: str
    offset: int
    data: bytes
    answer: Answer


@dataclass(frozen=True)
class _Call:
    """A function to run in the thread that owns the index."""

    act: Callable[[Indexer], Any]
    answer: Future[Any]


@dataclass(eq=False, repr=False)
class Appender:
    indexer: Indexer
    replica: Replica
    _: KW_ONLY
    wal: Wal
    log_cap_bytes: int
    on_rest: Callable[[], None]

    def __post_init__(self) -> None:
        self._rest_at = time.monotonic() + _REST_EVERY_S
        self._flushers = ThreadPoolExecutor(FLUSHERS, thread_name_prefix="lehr-flush")
        self._queue: queue.SimpleQueue[_Append | _Call | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lehr-appender", daemon=True)
        self._thread.start()

    def append(self, attempt_id: str, name: str, offset: int, data: bytes, answer: Answer) -> None:
        """Queue an append; ``answer`` is called in this thread once it is on disk or refused."""
        self._put(_Append(attempt_id, name, offset, data, answer))

    def call(self, act: Callable[[Indexer], T]) -> Future[T]:
        """Run ``act`` between two groups."""
        answer: Future[T] = Future()
        self._put(_Call(act, answer))
        return answer

    def close(self) -> None:
        """Finish queued work, then end the thread."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._flushers.shutdown()

    def _put(self, item: _Append | _Call) -> None:
        with self._guard:
            if self._closed:
                raise StoreUnavailable("The store is closed.")
            self._queue.put(item)

    # --------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            group, call, ended = self._gather()
            if group:
                self._append_group(group)
            if call is not None:
                self._answer(call)
            if len(self.indexer.to_seal) > _MUST_SEAL:
                self._seal_some()
            self.wal.keep_small()
            if time.monotonic() >= self._rest_at:
                self._rest()
            if ended:
                return

    def _gather(self) -> tuple[list[_Append], _Call | None, bool]:
        """Gather all appends that wait now; a call ends the group, since it must run after them."""
        group: list[_Append] = []
        size = 0
        item = self._next()
        while True:
            if item is None:
                return group, None, True
            if isinstance(item, _Call):
                return group, item, False
            group.append(item)
            size += len(item.data)
            if size >= _GROUP_BYTES or len(group) >= _GROUP_PIECES:
                return group, None, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, None, False

    def _next(self) -> _Append | _Call | None:
        """Wait for work, and seal blocks meanwhile."""
        while self.indexer.to_seal:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                self._seal_some()
        while True:
            try:
                return self._queue.get(timeout=max(0.0, self._rest_at - time.monotonic()))
            except queue.Empty:
                self._rest()

    def _append_group(self, group: list[_Append]) -> None:
        """Append a group with one flush and one transaction; then answer each append."""
        answers: list[tuple[Answer, int | LehrError]] = []
        writing = Writing(self.replica, self._flushers)
        connection = self.indexer.connection
        try:
            limits.require_room(self.replica.root)
            connection.execute("BEGIN IMMEDIATE")
            answers = [(item.answer, self._try_append(writing, item)) for item in group]
            killpoints.reached("append: before flush")
            writing.flush()
            killpoints.reached("append: before commit")
            connection.execute("COMMIT")
            killpoints.reached("append: after commit")
        except Exception as error:  # noqa: BLE001 - each caller gets it; the thread must go on
            self._roll_back(error)
            if len(group) > 1 and not isinstance(error, (sqlite3.Error, StoreUnavailable)):
                # One append or its file is at fault; the others must not fail with it.
                for item in group:
                    self._append_group([item])
                return
            refused = _refusal(error)
            answers = [(item.answer, refused) for item in group]
        finally:
            writing.close()
        for answer, result in answers:
            try:
                answer(result)
            except Exception:  # noqa: BLE001 - what is stored stays; the thread must go on
                _log.exception("an append was not answered")

    def _try_append(self, writing: Writing, item: _Append) -> int | LehrError:
        """Append one piece; a file that cannot be read or written fails this piece alone."""
        try:
            return self._append_one(writing, item)
        except (OSError, StoreUnavailable) as error:
            return _refusal(error)

    def _append_one(self, writing: Writing, item: _Append) -> int | LehrError:
        stream = self.indexer.stream(item.attempt_id, item.name)
        if item.offset != stream.size:
            return OffsetMismatch(
                f"{item.attempt_id}/{item.name} continues at byte {stream.size}, "
                f"not {item.offset}.",
                expected=stream.size,
            )
        if not item.data:
            return stream.size
        if not stream.size and self.indexer.count_streams(item.attempt_id) >= limits.MAX_STREAMS:
            return UserError(f"{item.attempt_id} has {limits.MAX_STREAMS} streams, the maximum.")
        room = self._room(stream, len(item.data))
        stored = stream.stored
        if room and stream.stored == stream.size:
            writing.write(item.attempt_id, item.name, stream.stored, item.data[:room])
            stored += room
        return self.indexer.advance(stream, item.data, stored).size

    def _room(self, stream: IndexedStream, wanted: int) -> int:
        """Return how many of these bytes to store. The rest is confirmed too, so that its sender
        continues, but dropped.
        """
        if is_events(stream.name):
            if stream.stored + wanted <= limits.EVENTS_CAP:
                return wanted
            if stream.stored == stream.size:  # Only the first bytes over the limit are noted.
                cause = f"more than {limits.EVENTS_CAP:,} bytes, the maximum of an attempt"
                gap = Gap(stream.name, stream.size, stream.size + wanted, cause, time.time())
                self.replica.note_gap(stream.attempt_id, gap)
                stream.log(logging.WARNING, "%s; the rest is dropped", cause)
            return 0
        cap = limits.MEDIA_CAP if stream.name == layout.MEDIA else self.log_cap_bytes
        room = min(wanted, max(0, cap - stream.stored))
        if stream.stored + room > limits.SMALL_LOG:
            left = limits.LOGS_CAP - self.indexer.stored_logs(stream.attempt_id)
            room = min(room, max(0, left))
        return room

    def _answer(self, call: _Call) -> None:
        try:
            result = call.act(self.indexer)
        except BaseException as error:  # noqa: BLE001 - the caller handles it
            self._roll_back(error)
            call.answer.set_exception(error)
        else:
            call.answer.set_result(result)

    def _seal_some(self) -> None:
        try:
            self.indexer.seal_some()
        except Exception:  # noqa: BLE001 - logged; the thread must go on
            # Nothing is lost: the rows stay until the next append makes them due again.
            _log.exception("streams.db: a block could not be written")

    def _rest(self) -> None:
        self._rest_at = time.monotonic() + _REST_EVERY_S
        try:
            self.indexer.connection.execute("PRAGMA analysis_limit=400")
            self.indexer.connection.execute("PRAGMA optimize")
            self.on_rest()
        except Exception:  # noqa: BLE001 - logged; the thread must go on
            _log.exception("the databases could not be maintained")

    def _roll_back(self, error: BaseException) -> None:
        _log.error("a group of appends was not recorded", exc_info=error)
        self.indexer.forget()
        try:
            if self.indexer.connection.in_transaction:
                self.indexer.connection.execute("ROLLBACK")
        except sqlite3.Error:
            _log.exception("streams.db: rolling back failed")


def _refusal(error: Exception) -> LehrError:
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(f"The replica could not be written: {error.strerror or error}.")
    if isinstance(error, sqlite3.Error):
        return StoreUnavailable(f"streams.db could not be written: {error}.")
    return InternalError(f"a stream could not be recorded: {error!r}")
