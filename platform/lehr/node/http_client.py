"""The attempt protocol's client side: one kept-alive connection. Standard library only.

A small HTTP/1.1 client of its own: ``http.client`` brings in the whole of ``email`` and ``ssl``,
which is most of what a shipper would take to start. ``ssl`` is imported for https addresses alone.
"""

import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

PROTOCOL = "1"
TIMEOUT_S = 30.0
LONGEST_HEAD = 65_536
LONGEST_BODY = 64 << 20


class Outage(Exception):
    """The server could not be reached, or not be used; try again later.

    ``wait_s`` is how long it asked to be left alone, if it did.
    """

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class BadReply(Exception):
    """What came back is not HTTP."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    what: str

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Outage(f"{self.what}: answered {self.status} with JSON that is not an object")
        return value

    def must(self, *statuses: int) -> "Answer":
        if self.status not in statuses:
            detail = self.body[:300].decode("utf-8", "replace")
            raise Outage(f"{self.what}: answered {self.status} {detail}")
        return self


class ServerConnection:
    """Requests in the name of one attempt.

    ``address`` is asked again before each new connection: the server may have moved.
    """

    def __init__(self, address: Callable[[], str], token: str, attempt_id: str) -> None:
        self._address = address
        self._attempt_id = attempt_id
        self._socket: socket.socket | None = None
        self._prefix = ""
        self._host = ""
        self._headers = f"Authorization: Bearer {token}\r\nLehr-Protocol: {PROTOCOL}\r\n"
        self._received = b""

    def get(self, path: str) -> Answer:
        return self._request("GET", path, b"", "").must(200)

    def put(self, path: str, data: bytes) -> Answer:
        return self._request("PUT", path, data, "application/octet-stream")

    def post(self, path: str, value: dict[str, Any]) -> Answer:
        data = json.dumps(value).encode("utf-8", "surrogatepass")
        return self._request("POST", path, data, "application/json")

    def _request(self, method: str, path: str, data: bytes, kind: str) -> Answer:
        what = f"{method} {path}"
        # A kept connection may have been closed by the other side meanwhile: then once more.
        for fresh in (self._socket is None, True):
            try:
                connection = self._socket or self._connect()
                target = f"{self._prefix}/api/v1/attempts/{self._attempt_id}/{path}"
                head = (
                    f"{method} {target} HTTP/1.1\r\n"
                    f"Host: {self._host}\r\n{self._headers}Content-Length: {len(data)}\r\n"
                )
                head += f"Content-Type: {kind}\r\n\r\n" if kind else "\r\n"
                connection.sendall(head.encode("latin-1") + data)
                answer = self._reply(what)
            except (OSError, BadReply) as error:
                self._close()
                if fresh:
                    raise Outage(f"{what}: {type(error).__name__}: {error}") from error
                continue
            if answer.headers.get("connection", "").lower() == "close":
                self._close()
            if answer.status in {429, 503}:
                said = f"{what}: answered {answer.status} {_detail(answer)}".rstrip()
                raise Outage(said, _retry_after(answer))
            return answer
        raise AssertionError("the second try is always fresh")

    # --------------------------------------------------------------------------- connection

    def _connect(self) -> socket.socket:
        scheme, _, rest = self._address().partition("://")
        authority, slash, path = rest.partition("/")
        self._prefix = (slash + path).rstrip("/")
        self._host = authority
        host, colon, port = authority.rpartition(":")
        if not colon or "]" in port:  # No port; the last colon, if any, is IPv6's own.
            host, port = authority, ""
        number = int(port) if port else 443 if scheme == "https" else 80
        connection = socket.create_connection((host.strip("[]"), number), TIMEOUT_S)
        # A head and its body are one request, not worth waiting to fill a packet.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme == "https":
            import ssl

            context = ssl.create_default_context()
            connection = context.wrap_socket(connection, server_hostname=host.strip("[]"))
        self._socket = connection
        self._received = b""
        return connection

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _more(self) -> None:
        assert self._socket is not None
        piece = self._socket.recv(65_536)
        if not piece:
            raise BadReply("the connection was closed")
        self._received += piece

    def _reply(self, what: str) -> Answer:
        while True:
            status, headers = self._head()
            if status >= 200:
                break  # Others announce the reply that follows.
        if status in {204, 304}:
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        elif "content-length" in headers:
            body = self._take(_number(headers["content-length"], 10))
        else:
            raise BadReply("neither Content-Length nor chunks")
        return Answer(status, headers, body, what)

    def _head(self) -> tuple[int, dict[str, str]]:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > LONGEST_HEAD:
                raise BadReply("endless headers")
            self._more()
        lines = self._received[:end].decode("latin-1").split("\r\n")
        self._received = self._received[end + 4 :]
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BadReply(f"a reply that begins with {lines[0][:80]!r}")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(words[1]), headers

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._more()
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            self._more()
        return self._take(end + 2)[:-2]

    def _chunks(self) -> bytes:
        body = b""
        while size := _number(self._line().partition(b";")[0].decode("latin-1"), 16):
            body += self._take(size)
            self._line()
            if len(body) > LONGEST_BODY:
                raise BadReply("an endless body")
        while self._line():
            pass  # Trailers.
        return body


def _number(text: str, base: int) -> int:
    try:
        value = int(text.strip(), base)
    except ValueError:
        raise BadReply(f"{text[:40]!r} is not a valid length") from None
    if not 0 <= value <= LONGEST_BODY:
        raise BadReply(f"a length of {value}")
    return value


def _detail(answer: Answer) -> str:
    """What the problem says of itself."""
    try:
        return str(json.loads(answer.body)["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        return ""


def _retry_after(answer: Answer) -> float | None:
    try:
        return min(60.0, max(0.1, float(answer.headers["retry-after"])))
    except (KeyError, ValueError):
        return None
