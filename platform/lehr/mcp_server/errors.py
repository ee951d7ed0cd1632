"""Turn Lehr's errors into the answer of a tool, with the same message that people get."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mcp.server.mcpserver.exceptions import ResourceError, ToolError

from lehr.errors import LehrError
from lehr.mcp_server.answers import Answer, text_of

A = TypeVar("A", bound=Callable[..., Any])


def tool(method: Callable[..., Answer]) -> Callable[..., str]:
    """Make a tool of a method: its answer becomes short JSON, an error of Lehr a tool's error."""

    @functools.wraps(method)
    def answer(*args: Any, **given: Any) -> str:
        try:
            return text_of(method(*args, **given))
        except LehrError as error:
            raise ToolError(str(error)) from error

    # The tool's schema is made from the annotations: it returns text, whatever the method returns.
    answer.__annotations__ = {**method.__annotations__, "return": "str"}
    return answer


def resource(method: A) -> A:
    """Make a resource of a method: an error of Lehr becomes the reading's error."""

    @functools.wraps(method)
    def content(*args: Any, **given: Any) -> Any:
        try:
            return method(*args, **given)
        except LehrError as error:
            raise ResourceError(str(error)) from error

    return content  # type: ignore[return-value]
