"""``lehr support-bundle``: one file for somebody who helps. It needs no running server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lehr import formats
from lehr import home as homes
from lehr.cli.output import JsonOption, console, escaped, notes, print_json
from lehr.errors import NotFound

app = typer.Typer(rich_markup_mode=None)


@app.command("support-bundle")
def support_bundle(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs to include completely: id, prefix or name."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File to create. Default: lehr-support-<time>.tar.gz in this folder.",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home", metavar="FOLDER", help="Home folder. Default: LEHR_HOME, or ~/.lehr."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Collect logs and facts about this machine's server into a file to ask for help.

    The file has the results of `lehr doctor` and `lehr db check`, versions, processes, sizes, the
    ends of the server's and Ray's logs, and the record and logs of each RUN. Tokens, addresses of
    webhooks, and text that looks like a key are removed. Nothing else is removed: check the spec
    and the logs of each RUN before you send the file. The server may be running, or broken.

    JSON: {path, files: [{name, size_bytes, error}]}.
    """
    from lehr.cli.checks import run_checks
    from lehr.support import bundle

    where = (home or homes.home()).expanduser().absolute()
    if not where.is_dir():
        raise NotFound(
            f"{where} does not exist: no Lehr server has run there.",
            hint="To use another home: --home FOLDER, or LEHR_HOME",
        )
    target = out or Path(f"lehr-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    with notes().status("Collecting"):
        made = bundle.write(where, target.absolute(), runs or (), checks=run_checks)
    if as_json:
        print_json(
            {
                "path": str(made.path),
                "files": [
                    {"name": one.name, "size_bytes": one.size_bytes, "error": one.error}
                    for one in made.files
                ],
            }
        )
        return
    shown = console()
    for one in made.files:
        note = f"  [yellow]{escaped(one.error)}[/]" if one.error else ""
        shown.print(f"{formats.size(one.size_bytes):>9}  {escaped(one.name)}{note}")
    size = formats.size(made.path.stat().st_size)
    shown.print(f"{escaped(str(made.path))}: {len(made.files)} files, {size} packed")
