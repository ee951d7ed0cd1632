"""``lehr cluster``: list nodes, and exclude or readmit them."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import (
    JsonOption,
    console,
    escaped,
    print_json,
    print_result,
    table,
)

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List nodes, exclude or readmit them.",
)
app.add_typer(group, name="cluster")

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node, as lehr status shows it.")
]


@group.command("ls")
def ls(as_json: JsonOption = False) -> None:
    """List nodes and their GPUs, and which are in use. JSON: ClusterView."""
    view = connect().cluster()
    if as_json:
        print_json(view)
        return
    rows = table("node", "GPUs", "busy", "state", right=("GPUs", "busy"))
    for node in view.nodes:
        busy = sum(gpu.busy for gpu in node.gpus)
        state = escaped(node.no_runs or "in use")
        rows.add_row(escaped(node.name), str(len(node.gpus)), str(busy), state)
    console().print(rows)


@group.command("exclude")
def exclude(
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", help="Reason to show beside the node.")] = (
        "by the user"
    ),
    as_json: JsonOption = False,
) -> None:
    """Place no new runs on a node. Its running runs continue. JSON: ClusterView."""
    view = connect().exclude_node(node, reason)
    print_result(
        view,
        f"{escaped(node)} is excluded: no new runs. Its running runs continue.",
        as_json=as_json,
    )


@group.command("readmit")
def readmit(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Place runs on a node again, and clear its failure count. JSON: ClusterView."""
    view = connect().readmit_node(node)
    print_result(view, f"{escaped(node)} is readmitted: it can get new runs.", as_json=as_json)
