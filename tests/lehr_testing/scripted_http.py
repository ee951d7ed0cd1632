"""An HTTP server that answers with prepared bytes."""

from __future__ import annotations

import contextlib
import socket
import threading

from lehr.node.http_client import ServerConnection


class Scripted:
    """A server of one thread that answers each connection's requests with prepared bytes."""

    def __init__(self, *connections: list[bytes], family: int = socket.AF_INET) -> None:
        self.requests: list[bytes] = []
        self.closed = threading.Semaphore(0)
        """Released for each connection that the server has closed."""
        self.connections = connections
        self.listener = socket.socket(family)
        self.listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        for answers in self.connections:
            with contextlib.suppress(OSError):
                connection, _ = self.listener.accept()
                with connection:
                    for answer in answers:
                        self.requests.append(read_request(connection))
                        for piece in answer.split(b"|"):  # Arrives in pieces, as it may.
                            connection.sendall(piece)
            self.closed.release()

    def client(self, host: str = "127.0.0.1", prefix: str = "") -> ServerConnection:
        return ServerConnection(lambda: f"http://{host}:{self.port}{prefix}", "secret", "run-1")


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("closed")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    [length] = [
        int(ln.split(b":")[1]) for ln in head.split(b"\r\n") if ln.startswith(b"Content-Length")
    ]
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def reply(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
