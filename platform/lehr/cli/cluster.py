"""``lehr cluster``: list nodes, exclude or readmit them, set until when they are available."""

from __future__ import annotations

import datetime as dt
import time
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
from lehr.errors import UserError

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List nodes, exclude or readmit them, set until when they are available.",
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
        if node.until is not None and node.ending is None:
            state += f", available until {minute(node.until)}"
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


@group.command("until")
def until(
    node: NodeArgument,
    end: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help="Local time, e.g. 2026-12-01T18:00; may have a UTC offset. A dash (-): no end.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set until when a node is available, as a rented one is. JSON: ClusterView.

    Five minutes before, its trainings save, are queued again, and resume on other nodes. No run
    starts on it that would lose work.
    """
    at = None if end == "-" else moment(end, "TIME")
    view = connect().set_node_until(node, at)
    text = "has no end" if at is None else f"is available until {minute(at)}"
    print_result(view, f"{escaped(node)} {text}.", as_json=as_json)


def moment(text: str, name: str) -> float:
    """Return seconds since the epoch of a time as people write it. ``name``: of the option."""
    try:
        return dt.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"{name} {text[:100]!r} is not a time.",
            hint="Write 2026-12-01T18:00 (local time), or 2026-12-01T18:00+00:00.",
        ) from None


def minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
