"""``lehr mcp``: let agents use Lehr, by the Model Context Protocol on standard input and output."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, notes, print_json, to_jsonable
from lehr_trainer import extras

app = typer.Typer(rich_markup_mode=None)


@app.command("mcp")
def mcp(
    may_launch: Annotated[
        bool,
        typer.Option(
            "--may-launch/--read-only",
            help="Let the agent launch within the budget of the token, and stop what was "
            "submitted with it. Default: it can only read.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve the Model Context Protocol on standard input and output, so that agents can use Lehr.

    Agents start this command themselves; docs/mcp.md shows how to configure them. It needs the
    extra lehr[mcp].

    JSON: prints its tools and ends: {mcp: {may_launch, tools: [...], budget: BudgetView}};
    ``budget`` is null when read-only.
    """
    extras.need("mcp")
    from lehr.faces.mcp.server import mcp_server, tools

    client = connect()
    budget = client.budget() if may_launch else None
    if budget is not None and budget.gpu_hours is None:
        raise UserError(
            f"--may-launch needs a token with a budget, and the token {budget.name!r} has none.",
            hint="lehr admin token create agent --role researcher --gpu-hours 20, and give it to "
            "lehr mcp as LEHR_TOKEN, with LEHR_SERVER.",
        )
    if as_json:
        facts = {"may_launch": may_launch, "tools": list(tools(may_launch=may_launch))}
        print_json({"mcp": {**facts, "budget": to_jsonable(budget)}})
        return
    client.health()
    if sys.stdin.isatty():
        notes().print(
            "Waiting for a client of the Model Context Protocol on standard input. Agents start "
            "this command themselves: see docs/mcp.md. Ctrl-C ends it."
        )
    mcp_server(client, may_launch=may_launch).run("stdio")
