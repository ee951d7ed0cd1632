"""Limits for a connection beyond heads: how many there are, what surrounds a body, its rest,
answers that nobody reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import termios
from array import array
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from lehr_api.open_connections import OpenConnections
from lehr_api.request_heads import LimitedHeads

LARGEST_FRAME = 64 << 10
"""Bytes of a request's body that are none of its content: sizes of chunks, trailers."""
_FRAME_A_BYTE = 16
"""More such bytes for each byte of content: a chunk of one byte takes six."""
REST_S = 30.0
"""Seconds for the rest of a body whose request is answered, as nginx's lingering_close."""
UNREAD_S = 60.0
"""Seconds in which a client must read something of what waits for it, as nginx's send_timeout."""
_LEAST_READ = 16 << 10
_OPEN: WeakKeyDictionary[ServerState, OpenConnections] = WeakKeyDictionary()


def open_connections(server: ServerState) -> OpenConnections:
    """Return the counter of a server's connections."""
    found = _OPEN.get(server)
    if found is None:
        found = _OPEN[server] = OpenConnections()
    return found


class LimitedConnection(LimitedHeads):
    """Closes a connection that only costs memory: nothing of its requests is used any more.

    The application's own limits count while it reads a body. It does not read the body of a GET,
    and never sees trailers, which the parser joins without a limit.
    """

    rest_s = REST_S
    unread_s = UNREAD_S
    counted: str | None = None
    """The address for which it is counted, maybe already before it is made; None for one that is
    closed at once."""
    is_made = False
    """Whether it was ever open; with TLS, after its handshake."""
    _content = 0
    _frame = 0
    _in_body = False
    _rest: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_made = True
        if self.counted is None:
            address = self.client[0] if self.client is not None else ""
            if open_connections(self.server_state).add(address):
                self.counted = address
            else:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.counted is not None:
            open_connections(self.server_state).remove(self.counted)
            self.counted = None
        self._stop(self._rest)
        self._stop(self._unread)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        ends, content = self._ends, self._content
        super().data_received(data)
        if self._in_body and ends == self._ends:
            self._frame += len(data) - (self._content - content)
            if self._frame > LARGEST_FRAME + _FRAME_A_BYTE * self._content:
                self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # Else it is a trailer, which nobody reads.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body, self._content, self._frame = True, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop(self._rest)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # While requests wait in line, reading is paused, and this body is not the answered one's.
        if self._in_body and not self.transport.is_closing() and self.cycle.response_complete:
            self._rest = self.loop.call_later(self.rest_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._unread)
        self._watch_reading(self._waiting())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._unread)

    def _watch_reading(self, waiting: int) -> None:
        self._unread = self.loop.call_later(self.unread_s, self._check_reading, waiting)

    def _check_reading(self, waiting: int) -> None:
        left = self._waiting()
        if waiting - left < _LEAST_READ:
            self.transport.abort()
        else:
            self._watch_reading(left)

    def _waiting(self) -> int:
        """Return how many bytes the client has not received: here, and in the kernel.

        The kernel takes more only when a third of its buffer is free, which is megabytes.
        """
        sent = array("i", [0])
        with contextlib.suppress(OSError):  # The connection is closed.
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, sent)
        return self.transport.get_write_buffer_size() + sent[0]

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
