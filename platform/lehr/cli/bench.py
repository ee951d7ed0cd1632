"""``lehr bench``: repeat a published experiment (docs/reference-runs.md) on this machine.

The trainer measures, in its own processes. This module checks the names, passes the options on and
shows the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lehr.cli.output import JsonOption, console, escaped, notes, print_json, table
from lehr.errors import LehrError, UserError, nearest
from lehr_trainer import extras
from lehr_trainer.experiments import EXPERIMENTS
from lehr_trainer.experiments.sizes import SIZES

app = typer.Typer(rich_markup_mode=None)

_ABOUT = "\n\n".join(f"{name}: {text}." for name, text in EXPERIMENTS.items())


@app.command(
    "bench",
    help="Repeat a published experiment (docs/reference-runs.md) on this machine. Prints a table."
    "\n\n"
    f"{_ABOUT}\n\nOn a CPU it takes a minute or two; each row is measured in a separate process.",
)
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(EXPERIMENTS)}.")],
    size: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(SIZES)}. Default: small on a CPU, the published size on a GPU."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    sequences: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences per optimizer step. Default: from --size."),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence. Default: from --size.")
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="Memory limit in GB (batch only).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results (gpu only).")] = None,
    budget_s: Annotated[
        float | None, typer.Option(help="Start no more rows after this many seconds (gpu only).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this section (gpu only). May be repeated.")
    ] = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="Skip rows that use torch.compile.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a size that is too slow for a CPU.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """JSON: {experiment, size, title, machine, columns: [{key, title, unit, method}], rows,
    notes}.
    """
    if name not in EXPERIMENTS:
        near = nearest(name, EXPERIMENTS)
        raise UserError(
            f"there is no experiment {name!r}." + (f" Did you mean {near}?" if near else ""),
            hint=f"There are: {', '.join(EXPERIMENTS)}",
        )
    options = {
        "size": size,
        "device": device,
        "sequences": sequences,
        "sequence-length": sequence_length,
        "memory-gb": memory_gb,
        "out": out,
        "budget-s": budget_s,
    }
    given = [f"--{key}={value}" for key, value in options.items() if value is not None]
    given += [f"--only={section}" for section in only or ()]
    flags = [*["--force"] * force, *["--eager"] * eager]
    found = _run([name, "--json", *given, *flags], quiet=as_json)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _run(arguments: list[str], *, quiet: bool) -> dict[str, Any]:
    """Run the experiment and return the trainer's table. Its progress goes to stderr.

    Raises:
        UserError: an option is wrong.
        LehrError: the trainer failed.
        ModuleNotFoundError: it is not installed.
    """
    extras.need("torch")
    from lehr import home

    environment = {**os.environ}
    environment.setdefault("LEHR_DATA", str(home.data_dir()))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "lehr_trainer", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    output_lines: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            output_lines.append(line.rstrip())
            if not quiet and not line.startswith("error: "):
                notes().print(line.rstrip(), markup=False, style="dim")
        assert process.stdout is not None
        answer = process.stdout.read()
        process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    last = output_lines[-1] if output_lines else f"exit {process.returncode}"
    if process.returncode == 2:
        raise UserError(last.removeprefix("error: "))
    if process.returncode != 0:
        raise LehrError(f"the experiment failed: {last}")
    result: dict[str, Any] = json.loads(answer)
    return result


def _show(found: dict[str, Any]) -> None:
    columns = [
        column
        for column in found["columns"]
        if any(row["values"].get(column["key"]) is not None for row in found["rows"])
    ]
    titles = [f"{c['title']} ({c['unit']})" if c["unit"] else c["title"] for c in columns]
    noted = any(row["note"] for row in found["rows"])
    shown = table("", *titles, *["note"] * noted, right=tuple(titles))
    for row in found["rows"]:
        figures = [_figure(row["values"].get(c["key"]), c["digits"]) for c in columns]
        shown.add_row(escaped(row["name"]), *figures, *[escaped(row["note"])] * noted)
    out = console()
    out.print(found["title"], markup=False, style="bold")
    out.print(shown)
    for column in columns:
        out.print(f"{column['title']}: {column['method']}", markup=False, style="dim")
    for note in found["notes"]:
        out.print(note, markup=False)
    facts = "; ".join(f"{key} {value}" for key, value in found["machine"].items())
    out.print(f"Machine: {facts}", markup=False, style="dim")


def _figure(value: Any, digits: int) -> str:
    if value is None:
        return ""
    return escaped(value) if isinstance(value, str) else f"{value:,.{digits}f}"
