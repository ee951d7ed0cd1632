"""``lehr quota``: how many GPUs the runs of a project hold at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr import formats
from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, print_result, table

app = typer.Typer(rich_markup_mode=None)
quota = typer.Typer(
    help="Limit how many GPUs the runs of a project hold at a time.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(quota, name="quota")

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]


@quota.callback()
def about() -> None:
    """Limit how many GPUs the runs of a project hold at a time.

    A run beyond the quota of its project waits, and its reason says so. A project without a quota
    has no limit.
    """


@quota.command("set")
def set_quota(
    project: Project,
    gpus: Annotated[
        int, typer.Argument(metavar="GPUS", min=0, help="Maximum number of GPUs at a time.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Set the quota of a project. Running runs continue, even if they hold more.

    Needs the role admin.

    JSON: {quota: QuotaView}.
    """
    made = connect().set_quota(project, gpus)
    if as_json:
        print_json({"quota": made})
    else:
        unit = "GPU" if made.gpus == 1 else "GPUs"
        console().print(f"{escaped(made.project)}: at most {made.gpus} {unit} at a time.")


@quota.command("ls")
def list_quotas(as_json: JsonOption = False) -> None:
    """List the quotas. JSON: {quotas: [QuotaView]}."""
    found = connect().quotas()
    if as_json:
        print_json({"quotas": found})
        return
    if not found:
        console().print("No project has a quota. Set one: lehr quota set PROJECT GPUS")
        return
    rows = table("project", "gpus", "set", "by")
    for one in found:
        changed = formats.ago(one.changed_at), escaped(one.changed_by)
        rows.add_row(escaped(one.project), str(one.gpus), *changed)
    console().print(rows)


@quota.command("rm")
def remove_quota(project: Project, as_json: JsonOption = False) -> None:
    """Remove the quota of a project: its runs have no limit. Needs the role admin.

    JSON: {quota: QuotaView}.
    """
    removed = connect().remove_quota(project)
    print_result({"quota": removed}, f"{escaped(removed.project)} has no quota.", as_json=as_json)
