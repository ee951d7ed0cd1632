"""``/mcp``: the tools of ``lehr mcp`` over HTTP, for the person whose token the request has."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.routing import Route

from lehr.errors import NotFound, Unauthorized
from lehr.faces.client import Client
from lehr_api.auth import AGENTS, bearer_token
from lehr_trainer import extras

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp.server import MCPServer
    from starlette.types import Receive, Scope, Send

    from lehr_api.settings import Settings


class Agents:
    """Answers each request by a server of its own: no session, so a restart ends no agent's work.

    Its tools send their requests as any client does, with the agent's token. So role and budget
    are checked where they are for everybody. Making the tools takes 25 ms (2 cores, 2026).
    """

    def __init__(self, settings: Settings) -> None:
        self._url = settings.url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = bearer_token(Headers(scope=scope))
        if token is None:
            raise Unauthorized(
                "agents need a token of their own.", hint="Send Authorization: Bearer TOKEN"
            )
        if find_spec("mcp") is None:
            raise NotFound(
                "this server has no tools for agents: a package is missing.",
                hint=f"Where the server is: {extras.install('lehr[mcp]')}, then start it again.",
            )
        with Client(self._url, token) as client:
            server = await to_thread.run_sync(_server, client)
            app = server.streamable_http_app(
                streamable_http_path=AGENTS,
                json_response=True,
                stateless_http=True,
                # The guard has checked host and origin.
                host="",
            )
            async with server.session_manager.run():
                await app(scope, receive, send)


def _server(client: Client) -> MCPServer:
    """Return the server of tools: with a budget also those that launch, as ``--may-launch`` has."""
    from lehr.faces.mcp.server import mcp_server

    return mcp_server(client, may_launch=client.budget().gpu_hours is not None)


def install(app: FastAPI, settings: Settings) -> None:
    """Add the path; the description of the API leaves it out, as it is another protocol."""
    app.router.routes.append(Route(AGENTS, Agents(settings)))
