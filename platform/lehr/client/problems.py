"""Exceptions from problem answers (application/problem+json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
