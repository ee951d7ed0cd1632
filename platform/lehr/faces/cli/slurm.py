"""``lehr slurm``: jobs of Slurm whose nodes join this machine's server."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.base.formats import counted, duration
from lehr.control.availability import MARGIN_S
from lehr.errors import UserError
from lehr.faces.cli.admin import seconds
from lehr.faces.cli.join import TOKEN_VARIABLE
from lehr.faces.cli.node import invitation
from lehr.faces.cli.output import JsonOption, console, escaped, print_json

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Use nodes of a Slurm cluster."
)
app.add_typer(group, name="slurm")


@group.command("up")
def up(
    options: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTIONS", help="Options for sbatch.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="Number of nodes.")] = 1,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit of the job: 90m, 8h or 2d.")
    ] = "8h",
    logical_gpus: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Logical GPUs of each node, where there are no GPUs."),
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the job's script; submit nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a Slurm job. When it starts, its nodes join this machine's server until it ends.

    Options of sbatch follow two dashes: lehr slurm up --nodes 2 -- --partition gpu --gres gpu:8

    JSON: {job, script}; job: its id, or null if it is only printed.
    """
    from lehr.faces.join import slurm

    options = options or []
    if options and not options[0].startswith("-"):
        raise UserError(f"{options[0][:100]!r} is not an option of sbatch.")
    time_s = seconds(time, "--time")
    if time_s <= MARGIN_S:
        raise UserError(
            f"--time {time!r} is too short: trainings move on {duration(MARGIN_S)} before the end."
        )
    text = slurm.script(nodes=nodes, time_s=time_s, logical_gpus=logical_gpus, options=options)
    job = None
    if not only_print:
        info, token, _ = invitation(slurm.TOKEN_S)
        variables = {"LEHR_SERVER": info.url, TOKEN_VARIABLE: token}
        variables |= {} if info.ca_file is None else {"LEHR_CA": info.ca_file}
        job = slurm.submit(text, variables)
    if as_json:
        print_json({"job": job, "script": text})
    elif job is None:
        typer.echo(text, nl=False)
    else:
        console().print(
            f"Slurm job {job} is submitted: {counted(nodes, 'node')} for {duration(time_s)}. When "
            f"it starts, its nodes join {escaped(info.url)}: squeue -j {job}, lehr status.\n"
            f"To end it: scancel --signal=TERM {job}. Its trainings save, and move on."
        )
