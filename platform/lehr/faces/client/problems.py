"""Exceptions from problem answers, and hints for a server that cannot be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lehr.base import home
from lehr.errors import (
    Conflict,
    Fenced,
    InternalError,
    LehrError,
    NotFound,
    PlanRefused,
    RayStarting,
    ServerUnavailable,
    SpecError,
    SpecProblem,
    Unauthorized,
    UserError,
)

_BY_CODE: dict[str, type[LehrError]] = {
    kind.code: kind
    for kind in (
        *(UserError, NotFound, Conflict, RayStarting, PlanRefused, Unauthorized, Fenced),
        InternalError,
    )
}
_BY_STATUS: dict[int, type[LehrError]] = {
    400: UserError,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: Fenced,
    503: ServerUnavailable,
}


def problem_error(status: int, body: bytes) -> LehrError:
    """Return the exception for a problem+json answer."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict) or "detail" not in data:
        return InternalError(
            f"the server answered {status} without a reason.",
            hint="It may not be a Lehr server, or a proxy may have answered.",
        )
    code, detail, hint = data.get("code"), str(data["detail"]), data.get("hint")
    if code == SpecError.code and data.get("problems"):
        return SpecError([_problem(item) for item in data["problems"]])
    kind = _BY_CODE.get(str(code)) or _BY_STATUS.get(status)
    if kind is None:
        kind = UserError if 400 <= status < 500 else InternalError
    return kind(detail, hint=hint)


def _problem(item: Mapping[str, Any]) -> SpecProblem:
    return SpecProblem(
        path=str(item.get("path", "")),
        message=str(item.get("message", "")),
        hint=item.get("hint"),
        line=item.get("line"),
        column=item.get("column"),
        source=item.get("source"),
    )


START = "Start it: lehr up        Another server: lehr --server URL, or LEHR_SERVER"


def is_here(server: str) -> bool:
    """Return whether the server is on this machine, as far as that is known without asking DNS."""
    host = urlsplit(server).hostname or ""
    if home.is_loopback(host) or (_is_ipv4(host) and home.is_own(host)):
        return True
    own = home.read_server(home.home())
    return own is not None and own.url == server


def no_answer(server: str, *, unknown_host: bool) -> str:
    """Return what to do if nothing answers at the server's address."""
    if is_here(server):
        return START
    url = urlsplit(server)
    right = "Is the address right? Give another: lehr --server URL, or LEHR_SERVER"
    if unknown_host:
        return f"This machine cannot resolve {url.hostname}. {right}"
    port = url.port or (443 if url.scheme == "https" else 80)
    return (
        f"The server is on another machine, {url.hostname}. Is it up? There: lehr status\n"
        f"  Does it listen for others (lehr up --host), and is port {port} open in firewalls?\n"
        f"  {right}"
    )


def no_answer_in_time(server: str) -> str:
    """Return what to do if the server took the connection, and was silent."""
    on_host = "" if is_here(server) else f" on {urlsplit(server).hostname}"
    return f"It may be stopped or overloaded. Check{on_host}: lehr doctor"


def no_server() -> str:
    """Return what to do if no server of this home runs, and none is named."""
    url = home.joined_server(home.home())
    if url is None:
        return START
    return (
        f"This machine is a node of {url}. Ask that server: lehr --server {url}, with a token of "
        "yours in LEHR_TOKEN"
    )


def _is_ipv4(host: str) -> bool:
    return host.replace(".", "").isdigit() and host.count(".") == 3
