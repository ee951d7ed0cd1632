"""``lehr bench``: measure training steps on this machine. The trainer measures and prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from lehr.faces.cli.output import JsonOption
from lehr_trainer import extras
from lehr_trainer.experiments import SIZES, TABLES

app = typer.Typer(rich_markup_mode=None)

_ABOUT = "\n\n".join(f"{name}: {text}." for name, text in TABLES.items())


@app.command(
    "bench",
    help="Measure training steps on this machine: published configurations and techniques side "
    "by side, as a table.\n\n"
    f"{_ABOUT}\n\nOn a CPU it takes a minute or two; each row is measured in a separate process.",
)
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(TABLES)}.")],
    size: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(SIZES)}. Default: small on a CPU, the published size on a GPU."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences per optimizer step. Default: from --size.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence. Default: from --size.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps results; the next call measures missing rows."),
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option(help="Start no more rows after this many seconds.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this table (gpu only). May be repeated.")
    ] = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="Skip rows that use torch.compile.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a size that is too slow for a CPU.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """JSON: {experiment, size, title, machine, columns: [{key, title, unit, method, digits}], rows:
    [{name, values, note, failed}]}.
    """
    extras.need("torch")
    options = {
        "size": size,
        "device": device,
        "sequences": sequences,
        "sequence-length": sequence_length,
        "out": out,
        "budget-s": budget_s,
    }
    arguments = [f"--{key}={value}" for key, value in options.items() if value is not None]
    arguments += [f"--only={section}" for section in only or ()]
    arguments += [*["--force"] * force, *["--eager"] * eager, *["--json", "--quiet"] * as_json]
    command = [sys.executable, "-P", "-m", "lehr_trainer", "bench", name, *arguments]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
