"""``lehr mcp``: let agents use Lehr, by the Model Context Protocol on standard input and output."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, notes, print_json, to_jsonable
from lehr_trainer import extras

app = typer.Typer(rich_markup_mode=None)
skills = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(skills, name="skills")
_SKILL_FOLDERS = (".agents/skills/lehr", ".claude/skills/lehr")
"""Where coding agents look for the skills of a project: most of them, and Claude Code."""


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


@skills.callback()
def _skills() -> None:
    """Give coding agents the skill of using Lehr."""


@skills.command("add")
def add(
    project: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The project in which agents work.")
    ] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Write the skill `lehr` into a project, for the agents that work in it.

    It is one page, SKILL.md, in .agents/skills/lehr and in .claude/skills/lehr. A page of an
    earlier version is replaced.

    JSON: {files: [PATH]}.
    """
    if not project.is_dir():
        raise UserError(f"{project} is not a folder.", hint="Name the folder of the project.")
    skill = resources.files("lehr.faces.mcp").joinpath("SKILL.md").read_text()
    pages = [project / folder / "SKILL.md" for folder in _SKILL_FOLDERS]
    for page in pages:
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(skill)
        except OSError as error:
            raise UserError(f"{page} cannot be written: {error.strerror}.") from None
    if as_json:
        print_json({"files": [str(page) for page in pages]})
    else:
        print("\n".join(f"Written: {page}" for page in pages))
