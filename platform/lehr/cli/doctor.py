"""``lehr doctor``: find problems of this machine, and suggest fixes."""

from __future__ import annotations

import typer

from lehr.cli.output import JsonOption, console, print_json, unicode_safe

app = typer.Typer(rich_markup_mode=None)

_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
_MARKS = {"ok": "✓", "note": "!", "bad": "✗"}
_ASCII_MARKS = {"ok": "ok", "note": "!", "bad": "x"}


@app.command("doctor")
def doctor(as_json: JsonOption = False) -> None:
    """Check this machine and suggest fixes. Exit code 1 if a check fails.

    JSON: {ok, checks: [{name, status: "ok" | "note" | "bad", found, fix}]}.
    """
    from rich.markup import escape

    from lehr.cli.checks import run_checks

    checks = run_checks()
    bad = [check for check in checks if check.status == "bad"]
    if as_json:
        print_json(
            {
                "ok": not bad,
                "checks": [
                    {"name": c.name, "status": c.status, "found": c.found, "fix": c.fix}
                    for c in checks
                ],
            }
        )
    else:
        out = console()
        marks = _MARKS if unicode_safe() else _ASCII_MARKS
        for check in checks:
            style = _STYLES[check.status]
            name = escape(f"{check.name:<15}")
            out.print(f"[{style}]{marks[check.status]:<2}[/] {name}", end="")
            out.print(check.found, markup=False)
            if check.fix:
                out.print(f"   {'':<15}{check.fix}", markup=False, style="dim")
        out.print()
        out.print(
            "This machine has everything that Lehr needs."
            if not bad
            else f"{len(bad)} to fix before training."
        )
    if bad:
        raise typer.Exit(1)
