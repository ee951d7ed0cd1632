"""``lehr sync``: send runs that Lehr did not start, and that did not reach the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr.faces.cli.output import JsonOption, print_json, say

app = typer.Typer(rich_markup_mode=None)


@app.command("sync")
def sync(
    folder: Annotated[
        Path, typer.Argument(help="Folder that lehr_log.init printed, or one above it.")
    ] = Path("lehr-runs"),
    as_json: JsonOption = False,
) -> None:
    """Send what is left of runs that a script has logged by lehr_log.init. May be repeated.

    JSON: {attempts: [{folder, run_id, result}]}.
    """
    from lehr.faces import external

    attempts = []
    for attempt, result in external.sync(folder):
        found = {"folder": str(attempt.folder), "run_id": attempt.run_id, "result": result}
        attempts.append(found)
        if not as_json:
            say(f"{attempt.run_id}: {result}   {attempt.folder}")
    if as_json:
        print_json({"attempts": attempts})
