"""An agent: the SDK's own client, which starts ``lehr mcp`` and talks to it over its pipes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters


class Refused(Exception):
    """A tool's error, as the model reads it."""


class Agent:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return its answer, which is JSON in one text."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        if result.is_error:
            raise Refused(content.text)
        assert len(content.text) <= 16_000
        return json.loads(content.text)

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def read(self, uri: str) -> str:
        [content] = (await self.client.read_resource(uri)).contents
        return content.text


@asynccontextmanager
async def agent(home: Path, *options: str, **environment: str) -> AsyncIterator[Agent]:
    """Start ``lehr mcp`` with these options; ``home`` is its LEHR_HOME."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LEHR_")}
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "lehr.faces.cli.main", "mcp", *options],
        env={**inherited, "LEHR_HOME": str(home), **environment},
    )
    try:
        async with Client(parameters) as client:
            yield Agent(client)
    except BaseExceptionGroup as group:  # The client's task groups wrap what a test raised.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
