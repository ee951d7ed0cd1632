"""``lehr queue``: list queued runs in order and why they wait, or change the place of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import (
    JsonOption,
    escaped,
    notes,
    print_fitting,
    print_json,
    print_result,
    table,
)

if TYPE_CHECKING:
    from lehr.schemas.cluster import QueueEntry

app = typer.Typer(rich_markup_mode=None)


@app.command("queue")
def queue(
    ref: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run whose priority --priority changes.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            min=-100,
            max=100,
            help="New priority of RUN, -100 to 100; higher ones start first. Default of a run: 0.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List queued runs in the order of their start, with the reason why each waits.

    Also shows expected starts, computed from the measured speed of running trainings. With RUN and
    --priority: change the place of a run. A run that has GPUs keeps them.

    JSON: {queue: [QueueEntry]}, or {run: RunDetail}.
    """
    if ref is not None and priority is not None:
        run = connect().run(ref).set_priority(priority)
        text = f"{escaped(run.name)}: {run.state}, priority {run.view.priority}"
        print_result({"run": run.detail}, text, as_json=as_json)
        return
    if ref is not None or priority is not None:
        raise UserError(
            "RUN and --priority belong together.", hint="lehr queue RUN --priority N, or lehr queue"
        )
    waiting = connect().queue()
    if as_json:
        print_json({"queue": waiting})
        return
    if not waiting:
        notes().print("The queue is empty.")
        return
    several = len({entry.project for entry in waiting}) > 1
    known = any(entry.expected_start is not None for entry in waiting)
    columns = ["#", "id", "run", *(["project"] if several else []), "GPUs", "priority", "since"]
    columns += ["start"] if known else []
    rows = table(*columns, "why", right=("#", "priority"))
    for entry in waiting:
        gpus = f"{entry.gpus} x {escaped(entry.gpu_type or 'any')}"
        rows.add_row(
            str(entry.position),
            entry.run_id,
            escaped(entry.name),
            *([entry.project] if several else []),
            f"{gpus} on {entry.nodes} nodes" if entry.nodes > 1 else gpus,
            str(entry.priority),
            formats.ago(entry.queued_at),
            *([_start(entry)] if known else []),
            escaped(_why(entry)),
        )
    print_fitting(rows, fold="why", spare=["since", "priority", "project"])


def _start(entry: QueueEntry) -> str:
    if entry.expected_start is None:
        return formats.NOTHING
    return f"in about {formats.duration(max(60.0, entry.expected_start - time.time()))}"


def _why(entry: QueueEntry) -> str:
    """Return why it waits, and the reason for its expected start."""
    if not entry.expected_because:
        return entry.reason
    when = "" if entry.expected_start is None else "when "
    return f"{entry.reason}; {when}{entry.expected_because}"
