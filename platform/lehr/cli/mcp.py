"""``lehr mcp``: let agents use Lehr, by the Model Context Protocol on standard input and output."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, notes, print_json
from lehr.errors import UserError
from lehr_trainer import extras

app = typer.Typer(rich_markup_mode=None)


@app.command("mcp")
def mcp(
    may_launch: Annotated[
        bool,
        typer.Option(
            "--may-launch/--read-only",
            help="Let the agent launch within the budget. Default: it can only read.",
        ),
    ] = False,
    budget_gpu_hours: Annotated[
        float | None,
        typer.Option(min=0, help="Maximum GPU-hours of all launches of the account together."),
    ] = None,
    budget_dollars: Annotated[
        float | None,
        typer.Option(
            min=0, help="Maximum cost in dollars of all launches of the account together."
        ),
    ] = None,
    account: Annotated[
        str,
        typer.Option(
            help="Name of the account whose budget the launches use. It is stored on this machine "
            "and survives restarts. A new name starts a new account."
        ),
    ] = "default",
    price: Annotated[
        float | None,
        typer.Option(min=0, help="Dollars per GPU-hour, instead of Lehr's table of GPUs."),
    ] = None,
    may_stop_others: Annotated[
        bool,
        typer.Option(
            "--may-stop-others",
            help="Also let the agent cancel and pause runs that others launched.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve the Model Context Protocol on standard input and output, so that agents can use Lehr.

    Agents start this command themselves; docs/mcp.md shows how to configure them. It needs the
    extra lehr[mcp].

    JSON: prints the account and ends: {mcp: {may_launch, account, tools: [...], budget: {limit,
    used, promised, left, launched, unanswered_requests}}}; ``budget`` is null when read-only.
    """
    extras.need("mcp")
    from lehr import home
    from lehr.mcp_server.budget import Limits
    from lehr.mcp_server.server import AgentSettings, LehrMcp

    limits = Limits(gpu_hours=budget_gpu_hours, dollars=budget_dollars)
    _check(limits.there, may_launch=may_launch, may_stop_others=may_stop_others)
    client = connect()
    settings = AgentSettings(may_launch, may_stop_others, account, limits, price)
    made = LehrMcp(client, home.home() / "mcp", settings)
    if as_json:
        budget = made.launching.budget() if may_launch else None
        facts = {"may_launch": may_launch, "account": account, "tools": list(made.tools)}
        print_json({"mcp": {**facts, "budget": budget}})
        return
    client.health()
    if sys.stdin.isatty():
        notes().print(
            "Waiting for a client of the Model Context Protocol on standard input. Agents start "
            "this command themselves: see docs/mcp.md. Ctrl-C ends it."
        )
    made.serve()


def _check(limited: bool, *, may_launch: bool, may_stop_others: bool) -> None:
    if may_launch and not limited:
        raise UserError(
            "--may-launch needs a budget.",
            hint="lehr mcp --may-launch --budget-gpu-hours 20   or   --budget-dollars 50",
        )
    if not may_launch and limited:
        raise UserError(
            "a budget is for launches, and this is read-only.", hint="Add --may-launch."
        )
    if not may_launch and may_stop_others:
        raise UserError(
            "--may-stop-others needs --may-launch.", hint="Add --may-launch and a budget."
        )
