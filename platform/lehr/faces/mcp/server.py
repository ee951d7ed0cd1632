"""The MCP server: its tools, its resources, and its first instructions to a model."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import ToolAnnotations

from lehr import __version__
from lehr.errors import LehrError, NotFound, did_you_mean
from lehr.faces.client import Client
from lehr.faces.mcp.answers import Answer, text_of
from lehr.faces.mcp.launching import Launching
from lehr.faces.mcp.reading import Reading
from lehr.specs import json_schema

READS = (
    "overview", "list_runs", "show_run", "list_sweeps", "show_sweep", "list_rollouts",
    "show_rollout", "compare", "queue", "wait", "cluster", "plan", "transfer", "example_spec",
    "metrics", "history", "logs", "search_logs", "events", "checkpoints", "code_diff", "diagnose",
)  # fmt: skip
LAUNCHES = (
    "submit_run", "launch_sweep", "launch_rollout", "retry", "resume", "extend_sweep",
    "repeat_seeds", "judge", "fork",
)  # fmt: skip
STOPS = ("cancel", "pause")
_INSTRUCTIONS = """\
Lehr runs pretraining experiments: runs, sweeps of runs, and rollouts (a run in stages with gates).
Begin with overview. Names and ids both work as ref. Answers are cut short; read on with limit,
offset, cursor, or a narrower range. To wait, call wait once; do not ask again and again. To find a
learning rate: example_spec, plan, launch_sweep, wait, then show_sweep, whose verdict, notes and
next_trials state what is known and what to try next. To explain a failed run: diagnose, then
search_logs and events. A difference is real only if the verdicts of compare state it: seeds alone
change a loss."""
_READ_ONLY = "\nThis server is read-only: it has no tools that launch or stop."
_MAY_LAUNCH = """
Launches count against a budget, shown by the tool budget. A launch over it is refused, and runs are
paused if they use more than it. Give each launch a request_id of your own; repeat it to be safe."""
_KINDS: tuple[Literal["run", "sweep", "rollout"], ...] = ("run", "sweep", "rollout")


def tools(*, may_launch: bool) -> tuple[str, ...]:
    """Return the names of the tools."""
    return (*READS, "budget", *LAUNCHES, *STOPS) if may_launch else READS


def mcp_server(client: Client, *, may_launch: bool) -> MCPServer:
    """Return the tools and resources for one Lehr server."""
    server = MCPServer(
        "lehr",
        title="Lehr",
        version=__version__,
        instructions=_INSTRUCTIONS + (_MAY_LAUNCH if may_launch else _READ_ONLY),
        log_level="WARNING",
    )
    reading = Reading(client)
    _add(server, reading, READS, read_only_hint=True)
    if may_launch:
        launching = Launching(client)
        _add(server, launching, ("budget",), read_only_hint=True)
        _add(server, launching, LAUNCHES, idempotent_hint=True, destructive_hint=False)
        _add(server, launching, STOPS, idempotent_hint=True, destructive_hint=True)
    _add_resources(server, client, reading)
    return server


def _add(server: MCPServer, part: Any, names: tuple[str, ...], **hints: bool) -> None:
    for name in names:
        server.add_tool(
            _tool(getattr(part, name)),
            name=name,
            annotations=ToolAnnotations(open_world_hint=False, **hints),
            structured_output=False,
        )


def _tool(method: Callable[..., Answer | Awaitable[Answer]]) -> Callable[..., Awaitable[str]]:
    """Make a tool of a method: its answer becomes short JSON, an error of Lehr a tool's error."""

    @functools.wraps(method)
    async def answer(*args: Any, **options: Any) -> str:
        try:
            made = await to_thread.run_sync(functools.partial(method, *args, **options))
            return text_of(await made if inspect.isawaitable(made) else made)
        except LehrError as error:
            raise ToolError(str(error)) from error

    # The tool's schema is made from the annotations: it returns text, whatever the method returns.
    answer.__annotations__ = {**method.__annotations__, "return": "str"}
    return answer


def _add_resources(server: MCPServer, client: Client, reading: Reading) -> None:
    """Add runs, sweeps, rollouts, configs and the schemas of specs, by URI."""

    def add(uri: str, media_type: str, about: str | None, read: Callable[[str], str]) -> None:
        @server.resource(f"lehr://{uri}", name=uri, mime_type=media_type, description=about)
        def content(ref: str) -> str:
            try:
                return read(ref)
            except LehrError as error:
                raise ResourceError(str(error)) from error

    def config(ref: str) -> str:
        """Return the resolved training config of a run."""
        return client.transport.text(f"/runs/{client.run(ref).id}/config")

    def schema(ref: str) -> str:
        """Return the JSON Schema of a run's, sweep's or rollout's spec."""
        for kind in _KINDS:
            if ref == kind:
                return json.dumps(json_schema(kind), separators=(",", ":"))
        raise NotFound(
            f"there is no schema {ref!r}.",
            hint=did_you_mean(ref, _KINDS) or f"There are: {', '.join(_KINDS)}.",
        )

    for noun, show in (
        ("run", reading.show_run),
        ("sweep", reading.show_sweep),
        ("rollout", reading.show_rollout),
    ):
        read = functools.partial(_text, show)
        add(f"{noun}s/{{ref}}", "application/json", show.__doc__, read)
    add("runs/{ref}/config", "application/yaml", config.__doc__, config)
    add("schema/{ref}", "application/schema+json", schema.__doc__, schema)


def _text(show: Callable[[str], Answer], ref: str) -> str:
    return text_of(show(ref))
