"""``lehr queue``: list queued runs in order, and why they wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from lehr.schemas.cluster import QueueEntry

app = typer.Typer(rich_markup_mode=None)


@app.command("queue")
def queue(as_json: JsonOption = False) -> None:
    """List queued runs in the order of their start, with the reason why each waits.

    Also shows expected starts, computed from the measured speed of running trainings.

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
