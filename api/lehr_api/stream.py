"""Changes, sent to browsers and clients as they happen (server-sent events).

One task reads the changes, builds each event once, and hands the same bytes to every listener, so a
hundred open tabs cost a hundred socket writes and no more queries. A slow listener keeps only the
newest event of each kind and object, and never delays others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from anyio import CapacityLimiter, to_thread

from lehr.app.presenters import Presenter
from lehr.schemas.cluster import ClusterView
from lehr.store import Change, Store

_log = logging.getLogger("lehr.api.stream")

PACE_S = 0.25
"""Minimum time for which changes are gathered before they are sent."""
BUILD_SHARE = 0.25
"""Maximum share of one thread's time for building events."""
MAX_PENDING = 5_000
"""Maximum number of pending events of a listener; beyond it, its client reads all again."""
HEARTBEAT = b": heartbeat\n\n"


class Event(NamedTuple):
    kind: str
    id: str
    """Id of the run, sweep or rollout; "" for the cluster. An event replaces an older one with
    the same kind and id.
    """
    name: str
    data: bytes
    """JSON."""
    run_id: str | None = None

    def line(self, number: int) -> bytes:
        return _line(number, self.kind.encode(), self.data)

    def item(self) -> bytes:
        """Return it as one item of a gathered event."""
        return b'["%s",%s]' % (self.kind.encode(), self.data)


@dataclass(eq=False, repr=False)
class Listener:
    """One open connection. Used only in the event loop's thread."""

    run_id: str | None
    kinds: frozenset[str] | None = None
    """The kinds of events that it gets; None: all."""
    _: KW_ONLY
    gathered: bool = False
    """Whether pending events are sent as one event. In a browser each event has a cost that does
    not depend on its length.
    """

    def __post_init__(self) -> None:
        self._number = 0
        self._missed = False
        self._pending: dict[tuple[str, str, str], bytes] = {}
        self._ready = asyncio.Event()
        self._closed = False

    def offer(self, event: Event, number: int, line: bytes, item: bytes) -> None:
        """Add the event, as a ``line`` of its own or an ``item``: all listeners share the bytes."""
        if self.run_id is not None and event.run_id != self.run_id:
            return
        if self.kinds is not None and event.kind not in self.kinds:
            return
        key = (event.kind, event.id, event.name)
        # Removed first, so that a replaced event also moves to the end: ids stay in order.
        self._pending.pop(key, None)
        self._pending[key] = item if self.gathered else line
        self._number = number
        if len(self._pending) > MAX_PENDING:
            self._pending.clear()
            self._missed = True
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    async def take(self, heartbeat_s: float) -> bytes | None:
        """Return new events, or a heartbeat after a while without any; None once closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(heartbeat_s):
                await self._ready.wait()
        if self._closed:
            return None
        self._ready.clear()
        pending, self._pending = list(self._pending.values()), {}
        first, self._missed = _hello(missed=True) if self._missed else b"", False
        if self.gathered and pending:
            pending = [_line(self._number, b"batch", b"[%s]" % b",".join(pending))]
        return first + b"".join(pending) or HEARTBEAT


@dataclass(eq=False, repr=False)
class Hub:
    """Passes the store's changes to the listeners."""

    store: Store
    presenter: Presenter
    cluster: Callable[[], ClusterView]
    _: KW_ONLY
    heartbeat_s: float

    def __post_init__(self) -> None:
        self._guard = threading.Lock()
        self._changes: set[tuple[str, str, str, int | None]] = set()
        self._sizes: dict[tuple[str, str, int | None], int] = {}
        self._listeners: set[Listener] = set()
        self._number = 0
        self._closed = False
        self._limiter: CapacityLimiter | None = None

    def start(self) -> None:
        """Subscribe to the store. Call it in the event loop of the listeners."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        # A separate thread: building events neither waits for requests nor delays them.
        self._limiter = CapacityLimiter(1)
        self._unsubscribe = self.store.subscribe(self.on_change)
        self._task = self._loop.create_task(self._send_changes())

    async def stop(self) -> None:
        self.close()
        self._unsubscribe()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def close(self) -> None:
        """End every open stream. Call it in the event loop's thread."""
        self._closed = True
        for listener in self._listeners:
            listener.close()

    def on_change(self, change: Change) -> None:
        """Note what to build. The store calls this in any thread, so it returns at once."""
        key = (change.kind, change.id, change.name or "", change.attempt)
        with self._guard:
            first = not self._changes
            self._changes.add(key)
            if change.size is not None:
                self._sizes[change.id, change.name or "", change.attempt] = change.size
        if first:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def listen(
        self,
        run_id: str | None,
        kinds: frozenset[str] | None = None,
        *,
        gathered: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of one client's stream, until it or the server ends.

        Args:
            run_id: only events of this run.
            kinds: only events of these kinds; None: all.
            gathered: send events that wait together as one, whose kind is ``batch``.
        """
        listener = Listener(run_id, kinds, gathered=gathered)
        if self._closed:
            return
        self._listeners.add(listener)
        try:
            yield b"retry: 2000\n" + _hello(missed=False)
            while (lines := await listener.take(self.heartbeat_s)) is not None:
                yield lines
        finally:
            self._listeners.discard(listener)

    async def _send_changes(self) -> None:
        while True:
            await self._wake.wait()
            # Gather changes that belong together.
            await asyncio.sleep(PACE_S)
            self._wake.clear()
            with self._guard:
                changes, self._changes = self._changes, set()
                sizes, self._sizes = self._sizes, {}
            if not self._listeners:
                continue
            began = time.monotonic()
            try:
                events = await to_thread.run_sync(
                    self._build, changes, sizes, limiter=self._limiter
                )
            except Exception:  # noqa: BLE001 - logged; the stream must go on
                # A view that cannot be built must not stop the stream for good.
                _log.exception("events of %d changes could not be built", len(changes))
                events = []
            self._publish(events)
            took = time.monotonic() - began
            await asyncio.sleep(max(0.0, took / BUILD_SHARE - took))

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self._number += 1
            line, item = event.line(self._number), event.item()
            for listener in self._listeners:
                listener.offer(event, self._number, line, item)

    def _build(
        self,
        changes: set[tuple[str, str, str, int | None]],
        sizes: dict[tuple[str, str, int | None], int],
    ) -> list[Event]:
        """Build events in a thread: the only place that reads the store for the streams."""
        ids: dict[str, set[str]] = {}
        for kind, changed_id, _, _ in changes:
            ids.setdefault(kind, set()).add(changed_id)
        presenter = self.presenter
        runs = self.store.runs.by_ids(ids.get("run", ()))
        views = presenter.runs.views(runs)
        rollouts = ids.get("rollout", set()) | {
            v.rollout_id for v in views if v.rollout_id is not None
        }
        sweeps = ids.get("sweep", set()) | {v.sweep_id for v in views if v.sweep_id is not None}
        events = [
            Event("run", view.id, "", view.model_dump_json().encode(), view.id) for view in views
        ]
        # A run's own event already has its newest values.
        sent = {view.id for view in views}
        events += [
            Event("metrics", run.run_id, "", run.model_dump_json().encode(), run.run_id)
            for run in presenter.runs.newest([*(ids.get("metrics", set()) - sent)])
        ]
        events += [Event("sweep", one, "", _json(id=one)) for one in sorted(sweeps)]
        events += [Event("rollout", one, "", _json(id=one)) for one in sorted(rollouts)]
        events += [
            Event(
                "log",
                run_id,
                f"{name}@{attempt}",
                _json(run_id=run_id, name=name, attempt=attempt, size=size),
                run_id,
            )
            for (run_id, name, attempt), size in sizes.items()
        ]
        if "cluster" in ids:
            events.append(Event("cluster", "", "", self.cluster().model_dump_json().encode()))
        return events


def _line(number: int, kind: bytes, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind, data)


def _hello(*, missed: bool) -> bytes:
    """Return the first event of a connection, or the one after events were ``missed``."""
    return b"event: hello\ndata: %s\n\n" % _json(missed=missed)


def _json(**values: object) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()
