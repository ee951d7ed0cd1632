"""What a route's ``responses`` hold: the problems that it may answer, and media but JSON.

The examples of the API's description are in ``docs/generate/examples.json``.
"""

from __future__ import annotations

from typing import Any

from lehr.schemas.base import Problem
from lehr_api.problems import MEDIA_TYPE

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
    502: "Another server did not take the message.",
}


def problem_responses(*statuses: int) -> Responses:
    """Those of these statuses, and of 401, 403 and 422, which any route may answer."""
    every = sorted({401, 403, 422, *statuses})
    return {status: described_problem(_DESCRIPTIONS[status]) for status in every}


def described_problem(description: str, kind: type[Problem] = Problem) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


def body_problem_responses() -> dict[str, dict[str, Any]]:
    """Those of any request with a body: it cannot be read, or is too large."""
    return {str(status): described_problem(_DESCRIPTIONS[status]) for status in (400, 413)}


def text_responses(media_types: str | list[str], *statuses: int) -> Responses:
    """Return the same for a route that answers with something other than JSON."""
    types = [media_types] if isinstance(media_types, str) else media_types
    content = {media_type: {"schema": {"type": "string"}} for media_type in types}
    return {200: {"content": content}} | problem_responses(*statuses)
