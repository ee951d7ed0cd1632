"""``lehr doctor``: find problems of this machine, or of the cluster, and suggest fixes."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli import check_list
from lehr.cli.output import JsonOption, console, print_json

app = typer.Typer(rich_markup_mode=None)


@app.command("doctor")
def doctor(
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check every node of the cluster instead of this machine."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and suggest fixes. Exit code 1 if a check fails.

    JSON: {ok, checks: [{name, status: "ok" | "note" | "bad", found, fix}]}.
    """
    if cluster:
        from lehr.cli.cluster_checks import check_cluster
        from lehr.cli.connect import connect

        checks = check_cluster(connect().cluster())
    else:
        from lehr.cli.checks import run_checks

        checks = run_checks()
    bad = check_list.bad(checks)
    if as_json:
        print_json({"ok": not bad, "checks": check_list.as_json(checks)})
    else:
        out = console()
        check_list.show(checks)
        out.print()
        subject = "The cluster" if cluster else "This machine"
        out.print(
            f"{subject} has everything that Lehr needs."
            if not bad
            else f"{len(bad)} to fix before training."
        )
    if bad:
        raise typer.Exit(1)
