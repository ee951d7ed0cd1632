"""Every error as problem+json (RFC 9457), written in one place, and what a route says of them.

The examples of the API's description are in ``docs/generate/examples.json``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lehr.errors import LehrError, SpecError, nearest
from lehr.schemas.base import Problem

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger("lehr.api")
_QUOTED = re.compile(r"'([^']*)'")
_ECHOED = 80
_MOST_FINDINGS = 100
"""Findings in an answer: a body of 4 MiB may have hundreds of thousands."""

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
    421: "wrong_host",
    422: "invalid",
    429: "busy",
}


class WrongHost(LehrError):
    """The request addresses the server by an unknown name, e.g. a rebound DNS name."""

    code = "wrong_host"
    status = 421


class CrossOrigin(LehrError):
    """The request comes from a page of another origin."""

    code = "cross_origin"
    status = 403


class TooLarge(LehrError):
    code = "too_large"
    status = 413


class WrongProtocol(LehrError):
    """A shim uses a version of the attempt protocol that this server does not support."""

    code = "wrong_protocol"
    status = 400


class Busy(LehrError):
    """Too many concurrent writes; ``Retry-After`` has the seconds to wait."""

    code = "busy"
    status = 429
    retry_after_s = 1


class OffsetProblem(Problem):
    """A piece of a stream does not begin where the stream ends."""

    offset: int
    """The end of the stream: send from there."""


def problem_response(
    status: int,
    detail: str,
    *,
    code: str | None = None,
    hint: str | None = None,
    problems: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return respond(
        Problem(
            title=_title(status),
            status=status,
            detail=detail,
            code=code or CODES.get(status, "error"),
            hint=hint,
            problems=problems or [],
        ),
        headers,
    )


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    # A value of the request may hold half a surrogate pair, which UTF-8 has no bytes for.
    content = problem.model_dump(exclude_none=True)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", "replace")
    return Response(body, problem.status, dict(headers or {}), media_type=MEDIA_TYPE)


def error_response(error: LehrError) -> Response:
    """Convert a ``LehrError`` to an HTTP answer."""
    headers: dict[str, str] = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="lehr"'
    if isinstance(error, Busy):
        headers["Retry-After"] = str(error.retry_after_s)
    problems = None
    if isinstance(error, SpecError):
        problems = [
            {name: value for name, value in asdict(problem).items() if value is not None}
            for problem in error.problems
        ]
    return problem_response(
        error.status,
        error.message,
        code=error.code,
        hint=error.hint,
        problems=problems,
        headers=headers,
    )


def unexpected_response() -> Response:
    """Answer for a bug of Lehr: details are in the log, not in the answer."""
    return problem_response(
        500,
        "the server failed to answer this request; see its log.",
        code="internal",
        hint="See server.log in the logs folder of Lehr's home.",
    )


def install(app: FastAPI) -> None:
    """Install handlers that convert every error of ``app`` to a problem."""
    app.add_exception_handler(LehrError, _lehr_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(RecursionError, _nested)
    app.add_exception_handler(UnicodeEncodeError, _not_text)


async def _lehr_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LehrError)
    if error.status >= 500:
        _log.error("request failed: %s %s", request.method, request.url.path, exc_info=error)
    return error_response(error)


async def _nested(request: Request, error: Exception) -> Response:
    """Answer for a body that nests its values deeper than its readers can follow."""
    _log.warning("too deeply nested: %s %s", request.method, request.url.path, exc_info=error)
    return problem_response(
        422, "the body nests its values too deeply.", hint="A spec has fewer than ten levels."
    )


async def _not_text(request: Request, error: Exception) -> Response:
    """Answer for a text that UTF-8 has no bytes for, which JSON can spell."""
    assert isinstance(error, UnicodeEncodeError)
    if error.reason != "surrogates not allowed":
        raise error
    _log.warning("not a text: %s %s", request.method, request.url.path, exc_info=error)
    return problem_response(
        422,
        f"a text has {error.object[error.start : error.end]!a}: half of a surrogate pair, "
        "which is not a character.",
        hint="Send both halves, or the character itself in UTF-8.",
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, LehrError):  # FastAPI's, for an error while it read the body.
        return error_response(error.__cause__)
    if isinstance(error.__cause__, RecursionError):
        return await _nested(request, error.__cause__)
    path, method = request.url.path, request.method
    detail, hint = str(error.detail), None
    if error.status_code == HTTPStatus.NOT_FOUND and detail == "Not Found":
        detail, hint = f"no route at {path}.", "The API's description: /api/v1/openapi.json"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        detail = f"{path} does not support {method}."
        hint = f"Allowed: {allowed}" if allowed else None
    return problem_response(error.status_code, detail, hint=hint, headers=error.headers)


async def _invalid_request(request: Request, error: Exception) -> Response:
    """Convert Pydantic's findings to problems: the field, its value, what is valid."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    body = _body_model(request)
    problems = [_finding(one, body) for one in found[:_MOST_FINDINGS]]
    first = problems[0] if problems else {"path": "request", "message": "request: not valid"}
    more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
    hint = first.get("hint")
    sent = request.headers.get("content-type", "nothing")
    if first["path"] == "body" and "json" not in sent:
        hint = f"Send it as Content-Type: application/json (it was {sent})."
    return problem_response(
        422,
        f"{first['message']}{more}",
        code="invalid_request",
        hint=hint,
        problems=problems,
    )


def _body_model(request: Request) -> type[BaseModel] | None:
    """Return the model of the request body, if the route has one."""
    route = request.scope.get("route")
    parameters = route.dependant.body_params if isinstance(route, APIRoute) else []
    kind = parameters[0].field_info.annotation if parameters else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _finding(found: Mapping[str, Any], body: type[BaseModel] | None) -> dict[str, str]:
    """Convert one of Pydantic's findings. Only short plain values are repeated: a spec is not."""
    path = ".".join(str(part) for part in found["loc"])
    if found["type"] == "json_invalid":
        reason = found.get("ctx", {}).get("error", "it cannot be read")
        where = found["loc"][-1]
        return {"path": "body", "message": f"body is not JSON: {reason} (character {where})."}
    # A caller knows `state`, not FastAPI's `query.state.0`.
    name = ".".join(str(part) for part in found["loc"][1:] if not isinstance(part, int)) or path
    if found["type"] == "extra_forbidden" and body is not None and len(found["loc"]) == 2:
        near = nearest(name, body.model_fields)
        fields = f"Fields here: {', '.join(body.model_fields)}"
        hint = f"Did you mean {near}?   {fields}" if near else fields
        return {"path": path, "message": f"{name} is not a field.", "hint": hint}
    given = found.get("input")
    reason = found["msg"].removeprefix("Value error, ")
    if isinstance(given, str | int | float) and len(str(given)) <= _ECHOED:
        valid = _QUOTED.findall(found.get("ctx", {}).get("expected", ""))
        if found["type"] in {"literal_error", "enum"} and valid:
            message = f"{name} is {given}; it must be one of {', '.join(valid)}."
            near = nearest(str(given), valid)
            meant = {"hint": f"Did you mean {near}?"} if near else {}
            return {"path": path, "message": message, **meant}
        return {"path": path, "message": f"{name} is {given}: {reason}."}
    return {"path": path, "message": f"{name}: {reason}."}


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


Responses = dict[int | str, dict[str, Any]]
_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "The role of the token does not include this.",
    404: "There is no such thing.",
    409: "The thing exists, but its state forbids this.",
    413: "The body is too large.",
    422: "The request is wrong; `problems` names each thing that is.",
    429: "Too much is being written at once; `Retry-After` has the seconds to wait.",
}


def problem_responses(*statuses: int) -> Responses:
    """Those of these statuses. A route needs to name none that ``USUAL`` and ``usual_responses``
    have.
    """
    return {status: described_problem(_DESCRIPTIONS[status]) for status in statuses}


def described_problem(description: str, kind: type[Problem] = Problem) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


USUAL = problem_responses(401, 403, 422)
"""Those of any route that needs a token."""


def usual_responses(path: str, *, has_body: bool) -> dict[str, dict[str, Any]]:
    """Those of any request with a body, which cannot be read or is too large, and of any for one
    object, which may not be there.
    """
    statuses = [*(400, 413) * has_body, *(404,) * ("{ref}" in path)]
    return {str(status): described_problem(_DESCRIPTIONS[status]) for status in statuses}


def text_responses(media_types: str | list[str], *statuses: int) -> Responses:
    """Return the same for a route that answers with something other than JSON."""
    types = [media_types] if isinstance(media_types, str) else media_types
    content = {media_type: {"schema": {"type": "string"}} for media_type in types}
    return {200: {"content": content}} | problem_responses(*statuses)
