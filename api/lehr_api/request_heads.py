"""Limits for the head of a request, which is read before anybody can be identified."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers. Other servers allow 8 to 64 KiB."""
LONGEST_S = 20.0
"""Seconds from the first byte of a head to its last, as in Apache's mod_reqtimeout."""
_AGAIN_S = 1.0
_END = b"content-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _END
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\n" + _END


class LimitedHeads(HttpToolsProtocol):
    """Closes a connection whose request has a head without an end, or one that does not come.

    The parser itself has no limit, and joins the pieces of one header again with each piece. A
    connection that waits for its next request has uvicorn's own, shorter timeout.
    """

    longest_s = LONGEST_S
    _head_is_open = True
    _head_bytes = 0
    _ends = 0
    """Of heads and bodies: what is read between two of them is of one part."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        ends = self._ends
        super().data_received(data)
        belongs_to_a_head = self._head_is_open and ends == self._ends
        if not belongs_to_a_head or self.transport.is_closing():
            return
        if self._timer is None:
            self._start_timer()
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD:
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_is_open, self._head_bytes = True, 0
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        self._ends += 1
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # Line feeds may come before the next request, and begin no message.
        self._head_is_open, self._head_bytes = True, 0
        self._ends += 1

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.longest_s, self._look_again)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        """Give up in a second: a loop that was held up first reads what has arrived meanwhile."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()  # It waits for the answer to the request before it.
            return
        self._timer = self.loop.call_later(_AGAIN_S, self._refuse, _TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
