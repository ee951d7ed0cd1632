"""``lehr view``: saved views of the runs page."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, print_result, table

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="List, save or remove views of the runs page."
)
app.add_typer(group, name="view")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the view.")]


@group.command("ls")
def ls(as_json: JsonOption = False) -> None:
    """List the saved views with their addresses. JSON: {views: [SavedView]}."""
    client = connect()
    found = client.views()
    if as_json:
        print_json({"views": found})
        return
    if not found:
        console().print("There is no saved view. Save one on the runs page, or: lehr view save")
        return
    rows = table("view", "address")
    for one in found:
        rows.add_row(escaped(one.name), escaped(f"{client.server}/?{one.query}"))
    console().print(rows)


@group.command("save")
def save(
    name: Name,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="Part of the page's address after the ?, e.g. filter=state:running",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Save a view, or replace the one of that name. JSON: SavedView."""
    client = connect()
    saved = client.put_view(name, query)
    print_result(
        saved,
        f"{escaped(saved.name)}: {escaped(client.server)}/?{escaped(saved.query)}",
        as_json=as_json,
    )


@group.command("rm")
def rm(name: Name, as_json: JsonOption = False) -> None:
    """Remove a saved view. JSON: {removed: name}."""
    connect().delete_view(name)
    print_result({"removed": name}, f"{escaped(name)} is removed.", as_json=as_json)
