"""``lehr import``: bring the runs of another tool along."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

import typer

from lehr.faces.cli.output import JsonOption, after_ctrl_c, console, print_json, say, warn

app = typer.Typer(rich_markup_mode=None)


@app.command("import")
def import_(
    tool: Annotated[
        Literal["wandb", "wandb-offline", "mlflow", "tensorboard", "trackio", "csv"],
        typer.Argument(help="What has the runs.", show_default=False),
    ],
    where: Annotated[
        str, typer.Argument(help="ENTITY/PROJECT of W&B, a tracking URI, or a folder or file.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Import runs with their config, points, tags, notes and times.

    May be repeated: it goes on after an interruption, adds what is new, and makes no run twice.

    JSON: {runs: [{tool, address, id, name, run_id, result, reason, sent, left_out}]}.
    """
    from lehr.faces import import_tools
    from lehr.faces.client import Client
    from lehr.faces.imported import send_runs

    after_ctrl_c("What was sent is kept. The same command goes on from there.")
    runs = list(getattr(import_tools, tool.replace("-", "_"))(where))
    with Client() as client:
        for _ in send_runs(client, runs):
            done, sent = sum(run.result != "" for run in runs), sum(run.sent for run in runs)
            say(f"{done:,} of {len(runs):,} runs, {sent:,} points")
    refused = [run for run in runs if run.result == "refused"]
    if as_json:
        fields = "tool", "address", "id", "name", "run_id", "result", "reason", "sent", "left_out"
        print_json({"runs": [{name: getattr(run, name) for name in fields} for run in runs]})
    else:
        results = Counter("still going on" if run.outcome is None else run.result for run in runs)
        listed = [f"{count:,} {result}" for result, count in sorted(results.items())]
        console().print(", ".join(listed) or "There is nothing to import.")
        if left_out := sum(run.left_out for run in runs):
            warn(f"{left_out:,} points have no possible step or name, and are left out.")
        for run in refused:
            warn(f"{run.name} ({run.id}): {run.reason}")
    if refused:
        raise typer.Exit(1)
