"""``lehr doctor``: find problems of this machine, or of the cluster, and suggest fixes."""

from __future__ import annotations

import typer

from lehr.cli import check_list
from lehr.cli.output import JsonOption, console, print_json

app = typer.Typer(rich_markup_mode=None)


@app.command("doctor")
def doctor(
    as_json: JsonOption = False,
) -> None:
    """Check this machine and the nodes of its server's cluster. Exit code 1 if a check fails.

    JSON: {ok, checks: [{name, status: "ok" | "note" | "bad", found, fix}]}.
    """
    from lehr.cli.checks import run_checks

    checks = run_checks()
    bad = check_list.bad(checks)
    if as_json:
        print_json({"ok": not bad, "checks": check_list.as_json(checks)})
    else:
        out = console()
        check_list.show(checks)
        out.print()
        out.print(
            "This machine has everything that Lehr needs."
            if not bad
            else f"{len(bad)} to fix before training."
        )
    if bad:
        raise typer.Exit(1)
