"""``lehr queue``: list queued runs in order, and why they wait."""

from __future__ import annotations

import typer

from lehr import formats
from lehr.cli.connect import connect
from lehr.cli.narrow import print_fitting
from lehr.cli.output import (
    JsonOption,
    escaped,
    notes,
    print_json,
    table,
)

app = typer.Typer(rich_markup_mode=None)


@app.command("queue")
def queue(as_json: JsonOption = False) -> None:
    """List queued runs in the order in which they start, and why each one waits.

    JSON: {queue: [QueueEntry]}.
    """
    waiting = connect().queue()
    if as_json:
        print_json({"queue": waiting})
        return
    if not waiting:
        notes().print("The queue is empty.")
        return
    several = len({entry.project for entry in waiting}) > 1
    columns = ["#", "id", "run", *(["project"] if several else []), "GPUs", "priority", "since"]
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
            escaped(entry.reason),
        )
    print_fitting(rows, fold="why", spare=["since", "priority", "project"])
