"""``lehr seeds``: repeat a run with other seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr import formats
from lehr.cli.connect import ActRef, connect
from lehr.cli.launch import recorded
from lehr.cli.output import JsonOption, YesOption, console, escaped, print_json
from lehr.cli.run_actions import confirm
from lehr.cli.watch import watch_until_end

if TYPE_CHECKING:
    from lehr.client import Run

app = typer.Typer(rich_markup_mode=None)


@app.command("seeds")
def seeds(
    ref: ActRef,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of runs to add, 1 to 20.")] = 3,
    yes: YesOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show their progress until they end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run with new seeds, as a sweep over train.seed, or over the seed of a program.

    Shows the noise between seeds. When its runs have ended, compare the run and its repetitions
    with other runs: lehr compare RUN RUN-seeds OTHER. The comparison then shows whether a
    difference is more than this noise. The seeds of a trial count for its point in its own sweep.

    JSON: {sweep: SweepDetail}. --json skips the confirmation.
    """
    client = connect()
    run = client.run(ref, "seeds")
    if not as_json and not yes and n >= 1:
        confirm(f"Queue {formats.counted(n, 'run')} like {run.name} ({run.id}){_time(run, n)}?")
    made = recorded(lambda: run.seeds(n))
    if as_json:
        print_json({"sweep": made.detail})
    else:
        out = console()
        runs = formats.counted(sum(made.view.counts.values()), "run")
        out.print(f"[bold]{escaped(made.name)}[/]  {made.id}  {runs} queued")
        # Of a program it is the argument that is its seed.
        listed = ", ".join(str(*trial.parameters.values()) for trial in made.trials)
        out.print(f"  seeds {listed}")
        out.print(f"  {made.url}", style="dim")
        out.print(f"  When they have ended: lehr compare {run.id} {made.id} OTHER", style="dim")
    if watch and not watch_until_end(client, made, as_json=as_json):
        raise typer.Exit(1)


def _time(run: Run, n: int) -> str:
    """Return the GPU-hours that they will need, if the run has ended completely."""
    cost = run.detail.cost
    if run.state != "completed" or cost is None:
        return ""
    hours = n * cost.gpu_hours
    return f", about {formats.si(hours)} GPU-hours" if hours >= 0.1 else ", under 0.1 GPU-hours"
