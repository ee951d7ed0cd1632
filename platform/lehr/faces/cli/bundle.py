"""``lehr open`` and ``lehr verify``: use a file ``NAME.lehr.html`` that ``lehr report`` made."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import yaml

from lehr.analysis.compare import flatten
from lehr.base.bundle import RECORD, SPEC, Bundle
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, escaped, print_result
from lehr.faces.verify import Plain, first_difference, machine, read, train
from lehr_trainer import extras
from lehr_trainer.contract import layout

app = typer.Typer(rich_markup_mode=None)
File = Annotated[Path, typer.Argument(metavar="FILE", help="A file *.lehr.html of `lehr report`.")]


@app.command("open")
def open_file(file: File, as_json: JsonOption = False) -> None:
    """Bring the runs of a file into the server, with their metrics, logs and code, as they ended.

    JSON: {opened: Opened}.
    """
    opened = connect().open(file)
    word = "Opened" if opened.new else "Already here"
    text = f"{word}: {opened.name} ({opened.id}), {opened.runs:,} runs"
    print_result({"opened": opened}, escaped(text), as_json=as_json)


@app.command("verify")
def verify_file(
    file: File,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps, from the first.")] = 20,
    run: Annotated[str | None, typer.Option(help="Of which run. Default: the first.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the first steps of a run in a file on this machine, and compare them with its record.

    Losses, norms and digests of the data must be the same, bit for bit. Under other hardware or
    versions, 2 % are allowed for all but digests. Exit code 1 if they differ. Needs no server.

    JSON: {verification: {run, steps, values, changes, first, beyond}}.
    """
    extras.need("torch")
    bundle = Bundle(file, file.name)
    changes = [f"{name} was damaged or changed" for name in bundle.changed()]
    rows: list[Plain] = json.loads(bundle.read(RECORD))["runs"]
    row = next((row for row in rows if run in {None, row["id"], row["name"]}), None)
    if row is None:
        raise UserError(f"--run {run}: {file.name} has {', '.join(row['name'] for row in rows)}.")
    streams = [n for n in bundle.below(f"runs/{row['id']}") if n.endswith(f"/{layout.EVENTS}")]
    started, recorded = read(b"\n".join(bundle.read(name) for name in streams))
    recorded = {key: value for key, value in recorded.items() if key[0] <= steps}
    if not recorded or row["resume_from"]:
        why = f"it starts from {row['resume_from']}" if row["resume_from"] else "none is recorded"
        raise UserError(f"the first {steps} steps of {row['name']} cannot be verified: {why}.")
    spec = yaml.safe_load(bundle.read(f"runs/{row['id']}/{SPEC}"))
    was, now = flatten(row["spec"]), flatten(spec)
    changes += [f"{n}: {was.get(n)} -> {now[n]}" for n in now if now[n] != was.get(n)]
    with tempfile.TemporaryDirectory(prefix="lehr-verify-") as scratch:
        now_started, here = train(bundle, spec, started, recorded, scratch, changes)
    data, own = started.get("data_digest"), now_started.get("data_digest")
    changes += [f"digest of the data: {data} -> {own}"] if data != own else []
    known, found = machine(started), machine(now_started)
    other = [f"{n}: {known[n]} -> {found.get(n)}" for n in known if known[n] != found.get(n)]
    first = first_difference(recorded, here)
    beyond = first_difference(recorded, here, tolerance=0.02) if other else first
    text = f"{len(recorded):,} values of steps 1 to {max(recorded)[0]} of {row['name']}"
    text = f"Bitwise the same: {text}" if first is None else f"Within 2 %: {text}. First: {first}"
    text = text if beyond is None else f"Differs at {beyond}"
    lines = [*(f"  not as recorded  {change}" for change in changes + other), text]
    answer = {"run": row["name"], "steps": max(recorded)[0], "values": len(recorded)}
    answer |= {"changes": changes + other, "first": first, "beyond": beyond}
    print_result({"verification": answer}, escaped("\n".join(lines)), as_json=as_json)
    raise typer.Exit(int(beyond is not None))
