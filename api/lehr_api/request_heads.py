"""A limit for the head of a request, which is read before anybody can be identified."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers. Other servers allow 8 to 64 KiB."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class LimitedHeads(HttpToolsProtocol):
    """Closes a connection whose request has a head without an end.

    The parser itself has no limit, and joins the pieces of one header again with each piece.
    """

    _head_is_open = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._head_is_open:
            return
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_is_open, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        super().on_headers_complete()
