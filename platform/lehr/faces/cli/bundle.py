"""``lehr open``: use a file ``NAME.lehr.html`` that ``lehr report`` made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, escaped, print_result

app = typer.Typer(rich_markup_mode=None)
File = Annotated[Path, typer.Argument(metavar="FILE", help="A file *.lehr.html of `lehr report`.")]


@app.command("open")
def open_file(file: File, as_json: JsonOption = False) -> None:
    """Bring the runs of a file into the server, with their metrics, logs and code, as they ended.

    They can be compared and submitted again like any run. Opening the file again changes nothing.

    JSON: {opened: Opened}.
    """
    opened = connect().open(file)
    text = f"{'Opened' if opened.new else 'Already here'}: {opened.name} ({opened.id}), "
    print_result({"opened": opened}, escaped(f"{text}{opened.runs:,} runs"), as_json=as_json)
