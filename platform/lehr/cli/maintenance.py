"""``lehr maintenance``: times when nodes are not used."""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated

import typer

from lehr.cli.admin import seconds
from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, table, to_jsonable
from lehr.errors import UserError
from lehr.schemas.maintenance import MaintenanceView

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    help="Declare maintenance windows: times when nodes are not used.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(group, name="maintenance")


@group.callback()
def about() -> None:
    """Declare maintenance windows: times when nodes are not used.

    When a window begins, trainings on its nodes save, stop and are queued again, to resume after
    the window. A stop spends a retry only if nothing was saved. A run that cannot save starts only
    if its time limit ends before the window begins.
    """


@group.command("add")
def add(
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Begin: now, or a local time such as 2026-12-01T02:00. May have a UTC offset.",
        ),
    ],
    length: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Length of the window, e.g. 30m, 4h or 2d.")
    ],
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only this node. Default: all.")
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option(
            "--repeat",
            metavar="HOW",
            help="Repeat it daily (every 24 hours) or weekly (every 168).",
        ),
    ] = None,
    note: Annotated[
        str,
        typer.Option("--note", metavar="TEXT", help="Text to show in the reason why a run waits."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Declare a window. Needs the role admin. JSON: {maintenance: MaintenanceView}."""
    duration_s = seconds(length, "--for")
    made = connect().add_maintenance(
        _moment(begin), duration_s, node=node, repeat=repeat, note=note
    )
    if as_json:
        print_json({"maintenance": to_jsonable(made)})
    else:
        console().print(f"Maintenance {made.id} {_words(made)}.")


@group.command("ls")
def list_windows(as_json: JsonOption = False) -> None:
    """List the windows, the next one first. JSON: {maintenance: [MaintenanceView]}."""
    found = connect().maintenance()
    if as_json:
        print_json({"maintenance": to_jsonable(found)})
        return
    if not found:
        console().print(
            "No maintenance is declared. Declare one: lehr maintenance add --from TIME --for 4h"
        )
        return
    rows = table("id", "nodes", "state", "from", "to", "repeat", "by", "note")
    for one in found:
        rows.add_row(
            str(one.id),
            escaped(one.node or "all"),
            one.state,
            _minute(one.starts_at),
            _minute(one.ends_at),
            one.repeat or "",
            escaped(one.created_by),
            escaped(one.note),
        )
    console().print(rows)


@group.command("rm")
def remove(
    window: Annotated[int, typer.Argument(metavar="ID", help="Number of the window.", min=1)],
    as_json: JsonOption = False,
) -> None:
    """Remove a window; an open one ends at once. Needs the role admin.

    JSON: {maintenance: MaintenanceView}.
    """
    removed = connect().remove_maintenance(window)
    if as_json:
        print_json({"maintenance": to_jsonable(removed)})
    else:
        console().print(f"Maintenance {removed.id} {_words(removed)} is removed.")


def _moment(text: str) -> float:
    if text.strip() == "now":
        return time.time()
    try:
        return dt.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"--from {text[:100]!r} is not a time.",
            hint="Write 2026-12-01T02:00 (local time), 2026-12-01T02:00+00:00, or now.",
        ) from None


def _words(one: MaintenanceView) -> str:
    nodes = "all nodes" if one.node is None else f"node {escaped(one.node)}"
    again = f", {one.repeat}" if one.repeat else ""
    return f"of {nodes}, {_minute(one.starts_at)} to {_minute(one.ends_at)}{again}"


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
