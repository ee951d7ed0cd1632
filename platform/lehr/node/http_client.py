"""The client side of the attempt protocol: one kept-alive connection. Standard library only."""

import http.client
import json
from collections.abc import Callable
from typing import IO, Any, NamedTuple

PROTOCOL = "1"
TIMEOUT_S = 30.0
LONGEST_BODY = 64 << 20
_PIECE = 1 << 20


class Outage(Exception):
    """The server cannot be reached or used now; try again later.

    ``wait_s`` is the wait that its Retry-After header gives, if any.
    """

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Rejected(Outage):
    """The server does not know the attempt, or its token."""


class BadReply(http.client.HTTPException):
    """The body of an answer is cut short, or does not end."""


class HttpResponse(NamedTuple):
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

    def must(self, *statuses: int) -> "HttpResponse":
        if self.status not in statuses:
            detail = self.body[:300].decode("utf-8", "replace")
            raise Outage(f"{self.what}: answered {self.status} {detail}")
        return self


class ServerConnection:
    """Requests in the name of one attempt.

    ``address`` is called again before each new connection: the server may have a new one.
    """

    def __init__(self, address: Callable[[], str], token: str, attempt_id: str) -> None:
        self._address = address
        self._attempt_id = attempt_id
        self._connection: http.client.HTTPConnection | None = None
        self._prefix = ""
        self._headers = {"Authorization": f"Bearer {token}", "Lehr-Protocol": PROTOCOL}

    def get(self, path: str) -> HttpResponse:
        return self._request("GET", path, b"", "").must(200)

    def download(self, path: str, file: IO[bytes], most: int) -> None:
        """Write the answer of a GET to a file, in pieces.

        Raises:
            Outage: the server cannot be reached, refuses, or sends another number of bytes than it
                announced, or more than ``most``.
        """
        what = f"GET {path}"
        connection = self._connection or self._connect()
        try:
            connection.request("GET", self._target(path), headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                detail = response.read(300).decode("utf-8", "replace")
                raise Outage(f"{what}: answered {response.status} {detail}")
            size = 0
            while piece := response.read(_PIECE):
                size += len(piece)
                if size > most:
                    raise BadReply(f"more than {most:,} bytes")
                file.write(piece)
            if response.length:
                raise BadReply("a body cut short")
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            raise Outage(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._close()

    def put(self, path: str, data: bytes) -> HttpResponse:
        return self._request("PUT", path, data, "application/octet-stream")

    def post(self, path: str, value: dict[str, Any]) -> HttpResponse:
        data = json.dumps(value).encode("utf-8", "surrogatepass")
        return self._request("POST", path, data, "application/json")

    def _request(self, method: str, path: str, data: bytes, kind: str) -> HttpResponse:
        what = f"{method} {path}"
        # The server may have closed a kept connection meanwhile: then try once more.
        for fresh in (self._connection is None, True):
            try:
                answer = self._exchange(method, path, data, kind)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                if fresh:
                    raise Outage(f"{what}: {type(error).__name__}: {error}") from error
                continue
            if answer.status in {429, 503}:
                message = f"{what}: answered {answer.status} {_detail(answer)}".rstrip()
                raise Outage(message, _retry_after(answer))
            if answer.status == 401:
                raise Rejected(f"{what}: answered 401 {_detail(answer)}".rstrip())
            return answer
        raise AssertionError("the second try always uses a new connection")

    def _exchange(self, method: str, path: str, data: bytes, kind: str) -> HttpResponse:
        connection = self._connection or self._connect()
        headers = self._headers | {"Content-Length": str(len(data))}
        if kind:
            headers["Content-Type"] = kind
        connection.request(method, self._target(path), data, headers)
        response = connection.getresponse()
        # The limit ends an answer without a length. With a limit, http.client does not check that
        # a body of known length is complete, so that is checked here.
        body = response.read(LONGEST_BODY + 1)
        if len(body) > LONGEST_BODY or response.length:
            raise BadReply("an endless body" if response.length is None else "a body cut short")
        if response.will_close:
            self._close()
        given = {name.lower(): value for name, value in response.getheaders()}
        return HttpResponse(response.status, given, body, f"{method} {path}")

    def _target(self, path: str) -> str:
        return f"{self._prefix}/api/v1/attempts/{self._attempt_id}/{path}"

    def _connect(self) -> http.client.HTTPConnection:
        scheme, _, rest = self._address().partition("://")
        authority, slash, path = rest.partition("/")
        self._prefix = (slash + path).rstrip("/")
        secure = scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(authority, timeout=TIMEOUT_S)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _detail(answer: HttpResponse) -> str:
    try:
        return str(json.loads(answer.body)["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        return ""


def _retry_after(answer: HttpResponse) -> float | None:
    try:
        return min(60.0, max(0.1, float(answer.headers["retry-after"])))
    except (KeyError, ValueError):
        return None
