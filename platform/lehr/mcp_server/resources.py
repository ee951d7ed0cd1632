"""Resources: what a client of the protocol can attach to a conversation, by URI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from lehr.errors import NotFound, nearest
from lehr.mcp_server.answers import text_of
from lehr.mcp_server.errors import resource

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from lehr.client import Client
    from lehr.mcp_server.reading import Reading

_KINDS: tuple[Literal["run", "sweep", "rollout"], ...] = ("run", "sweep", "rollout")


def add_resources(server: MCPServer, client: Client, reading: Reading) -> None:
    """Add the overview, runs, sweeps, rollouts, reports and the schemas of specs."""
    json_type, html, yaml = "application/json", "text/html", "application/yaml"

    @server.resource("lehr://overview", mime_type=json_type)
    @resource
    def overview() -> str:
        """Show the server, its GPUs, what runs and what waits."""
        return text_of(reading.overview())

    @server.resource("lehr://runs/{ref}", mime_type=json_type)
    @resource
    def run(ref: str) -> str:
        """Show a run, by id or name."""
        return text_of(reading.show_run(ref))

    @server.resource("lehr://runs/{ref}/config", mime_type=yaml)
    @resource
    def run_config(ref: str) -> str:
        """Return the resolved training config of a run."""
        return client.transport.text(f"/runs/{client.run(ref).id}/config")

    @server.resource("lehr://sweeps/{ref}", mime_type=json_type)
    @resource
    def sweep(ref: str) -> str:
        """Show a sweep with its verdict and ranked trials."""
        return text_of(reading.show_sweep(ref))

    @server.resource("lehr://rollouts/{ref}", mime_type=json_type)
    @resource
    def rollout(ref: str) -> str:
        """Show a rollout with its stages and gates."""
        return text_of(reading.show_rollout(ref))

    @server.resource("lehr://runs/{ref}/report", mime_type=html)
    @resource
    def run_report(ref: str) -> str:
        """Return the report of a run: one HTML page."""
        return client.transport.text(f"/runs/{client.run(ref).id}/report")

    @server.resource("lehr://sweeps/{ref}/report", mime_type=html)
    @resource
    def sweep_report(ref: str) -> str:
        """Return the report of a sweep: one HTML page."""
        return client.transport.text(f"/sweeps/{client.find_sweep(ref).id}/report")

    @server.resource("lehr://rollouts/{ref}/report", mime_type=html)
    @resource
    def rollout_report(ref: str) -> str:
        """Return the report of a rollout: one HTML page."""
        return client.transport.text(f"/rollouts/{client.find_rollout(ref).id}/report")

    @server.resource("lehr://schema/{kind}", mime_type="application/schema+json")
    @resource
    def schema(kind: str) -> str:
        """Return the JSON Schema of a run's, sweep's or rollout's spec."""
        from lehr.specs import json_schema

        for known in _KINDS:
            if kind == known:
                return json.dumps(json_schema(known), separators=(",", ":"))
        near = nearest(kind, _KINDS)
        raise NotFound(
            f"there is no schema {kind!r}.",
            hint=f"Did you mean {near}?" if near else f"There are: {', '.join(_KINDS)}.",
        )
