"""``lehr bench``: measure training steps on this machine. The trainer measures and prints."""

from __future__ import annotations

import subprocess
import sys

import typer

from lehr.faces.cli.output import JsonOption
from lehr_trainer import extras
from lehr_trainer.experiments import TABLES

app = typer.Typer(rich_markup_mode=None)

_TABLES = "\n\n".join(f"{name}: {text}." for name, text in TABLES.items())


@app.command(
    "bench",
    # The trainer's command line has the options, and their help.
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
    options_metavar="NAME [OPTIONS]",
    help="Measure training steps on this machine: published configurations and techniques side "
    f"by side, as a table.\n\n{_TABLES}\n\nOn a CPU it takes a minute or two; each row is measured "
    "in a separate process. Its options: lehr bench --help.\n\n"
    "JSON: {experiment, size, title, machine, columns: [{key, title, unit, method, digits}], rows: "
    "[{name, values, note, failed}]}.",
)
def bench(context: typer.Context, as_json: JsonOption = False) -> None:
    arguments = [*context.args, *["--json", "--quiet"] * as_json]
    command = [sys.executable, "-P", "-m", "lehr_trainer", "bench", *arguments]
    if {"-h", "--help"} & {*arguments}:
        print(subprocess.check_output(command, text=True), end="")
        return
    extras.need("torch")
    raise typer.Exit(subprocess.run(command, check=False).returncode)
