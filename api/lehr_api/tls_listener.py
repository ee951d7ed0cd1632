"""Accept TLS connections, and count each before its handshake.

A server of asyncio or uvloop shows a TLS connection only after its handshake. So connections whose
handshake is never finished would not be counted, and could use all files of the process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

import uvicorn

from lehr_api.connections import LimitedConnection, open_connections
from lehr_api.open_connections import OpenConnections

HANDSHAKE_S = 10.0
"""Seconds for the whole handshake. A client across the world needs one."""
_AT_ONCE = 100
"""Connections accepted before others get their turn."""
_FAULT_S = 1.0
"""Pause after a fault of the system, e.g. no file is left."""

_log = logging.getLogger("lehr.api")


class TlsListener:
    """Has the methods of ``asyncio.Server`` that uvicorn calls."""

    handshake_s = HANDSHAKE_S

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        backlog: int,
        connections: OpenConnections,
        make: Callable[[], LimitedConnection],
    ) -> None:
        """``make``: returns the protocol of a new connection."""
        self._listener = listener
        self._context = context
        self._backlog = backlog
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(self._backlog)
        self._listen()

    def close(self) -> None:
        """Accept no more, and end the handshakes."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, (address, *_rest) = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection could be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(_FAULT_S, self._listen)
                return
            if not self._connections.add(address):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake_hands(accepted, address))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, address: str) -> None:
        made = self._make()
        made.counted = address
        try:
            await self._loop.connect_accepted_socket(
                lambda: made, accepted, ssl=self._context, ssl_handshake_timeout=self.handshake_s
            )
        except OSError as error:
            _log.debug("a TLS handshake failed: %s", error)
        finally:
            # A connection that was made counts until it is lost.
            if not made.is_made:
                self._connections.remove(address)


class TlsServer(uvicorn.Server):
    """A server of uvicorn; with a certificate it listens with ``TlsListener``."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = self.config.ssl
        if context is None:
            await super().startup(sockets)
            return
        assert sockets is not None
        await super().startup([])
        for one in sockets:
            listener = TlsListener(
                one,
                context,
                backlog=self.config.backlog,
                connections=open_connections(self.server_state),
                make=self._connection,
            )
            listener.start()
            self.servers.append(cast("asyncio.Server", listener))

    def _connection(self) -> LimitedConnection:
        return LimitedConnection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
