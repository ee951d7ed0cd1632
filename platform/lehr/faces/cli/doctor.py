"""``lehr doctor``: find problems of this machine, or of the cluster, and suggest fixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from lehr.faces.check import Check
from lehr.faces.cli.output import JsonOption, console, print_json, unicode_safe

app = typer.Typer(rich_markup_mode=None)
_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
_MARKS = {"ok": "✓", "note": "!", "bad": "✗"}
_ASCII_MARKS = {"ok": "ok", "note": "!", "bad": "x"}


@app.command("doctor")
def doctor(
    link: Annotated[
        bool, typer.Option("--link", help="Also measure the network between nodes; takes seconds.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and the nodes of its server's cluster. Exit code 1 if a check fails.

    --link needs the server's machine, and nodes with little to do: they send each other zeros.

    JSON: {ok, checks: [{name, status: "ok" | "note" | "bad", found, fix}]}.
    """
    from lehr.faces.cli.checks import run_checks

    checks = run_checks()
    if link:
        from lehr.faces.cli.cluster_checks import check_link

        checks += check_link()
    failed = bad(checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        show(checks)
        console().print(
            f"\n{len(failed)} to fix before training."
            if failed
            else "\nThis machine has everything that Lehr needs."
        )
    if failed:
        raise typer.Exit(1)


def show(checks: Sequence[Check]) -> None:
    from rich.markup import escape

    out = console()
    marks = _MARKS if unicode_safe() else _ASCII_MARKS
    for check in checks:
        style = _STYLES[check.status]
        name = escape(f"{check.name:<15}")
        out.print(f"[{style}]{marks[check.status]:<2}[/] {name}", end="")
        out.print(check.found, markup=False)
        if check.fix:
            out.print(f"   {'':<15}{check.fix}", markup=False, style="dim")


def bad(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.status == "bad"]
