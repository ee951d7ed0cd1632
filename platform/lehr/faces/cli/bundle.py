"""``lehr open`` and ``lehr verify``: use a file ``NAME.lehr.html`` that ``lehr report`` made."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import yaml

from lehr.analysis.compare import flatten
from lehr.base.bundle import DAMAGE, RECORD, SPEC, Bundle
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, escaped, print_result
from lehr.faces.verify import Plain, first_difference, machine, read, train, weights
from lehr.specs import RunSpec
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

    Values, digests of the data and weights must be the same, bit for bit. Under other hardware or
    versions, 2 % are allowed for all but digests. Exit code 1 if they differ. Needs no server.

    JSON: {verification: {run, steps, values, changes, first, beyond}}.
    """
    extras.need("torch")
    bundle = Bundle(file, file.name)
    changes = [f"{name} was damaged or changed" for name in bundle.changed()]
    with tempfile.TemporaryDirectory(prefix="lehr-verify-") as scratch:
        try:
            rows: list[Plain] = json.loads(bundle.read(RECORD))["runs"]
            row = next((row for row in rows if run in {None, row["id"], row["name"]}), None)
            if row is None:
                raise UserError(f"--run {run}: the file has {', '.join(r['name'] for r in rows)}.")
            members, origin = bundle.below(f"runs/{row['id']}"), row["resume_from"]
            streams = [name for name in members if name.endswith(f"/{layout.EVENTS}")]
            started, recorded = read(b"\n".join(bundle.read(name) for name in streams))
            spec = yaml.safe_load(bundle.read(f"runs/{row['id']}/{SPEC}"))
            RunSpec.model_validate(spec)  # As it is: the code of the file knows no newer field.
            bundle.extractall(scratch, [n for n in members if spec["train"] and "/model" in n])
            tensors = weights(Path(scratch, "runs", row["id"]))
            saved = min((step for step, _ in tensors), default=0)
            recorded = {key: value for key, value in recorded.items() if key[0] <= steps}
            was, now, known = flatten(row["spec"]), flatten(spec), machine(started)
        except (*DAMAGE, AttributeError, OSError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{file.name} is refused: its record is not of a run: {why}.") from None
        if not recorded or origin:
            why = f"it starts from {origin}" if origin else "none is recorded"
            raise UserError(f"the first {steps} steps of {row['name']} cannot be verified: {why}.")
        changes += [f"{n}: {was.get(n)} -> {now[n]}" for n in now if now[n] != was.get(n)]
        if 0 < saved <= steps:
            spec["train"]["checkpoint"] |= {"every": saved, "keep_every": saved}
            recorded |= {key: tensor for key, tensor in tensors.items() if key[0] == saved}
        now_started, here = train(bundle, spec, started, recorded, scratch, changes)
    data, own = started.get("data_digest"), now_started.get("data_digest")
    changes += [f"digest of the data: {data} -> {own}"] if data != own else []
    found, first = machine(now_started), first_difference(recorded, here)
    other = [f"{n}: {known[n]} -> {found.get(n)}" for n in known if known[n] != found.get(n)]
    beyond = first_difference(recorded, here, tolerance=0.02) if other else first
    noun = f"values, with the weights of step {saved:,}," if 0 < saved <= steps else "values"
    text = f"{len(recorded):,} {noun} of steps 1 to {max(recorded)[0]} of {row['name']}"
    text = f"Bitwise the same: {text}" if first is None else f"Within 2 %: {text}. First: {first}"
    text = text if beyond is None else f"Differs at {beyond}"
    if saved > steps:
        text += f"\nWeights are not compared: they are of step {saved:,}, see --steps"
    lines = [*(f"  not as recorded  {change}" for change in changes + other), text]
    answer = {"run": row["name"], "steps": max(recorded)[0], "values": len(recorded)}
    answer |= {"changes": changes + other, "first": first, "beyond": beyond}
    print_result({"verification": answer}, escaped("\n".join(lines)), as_json=as_json)
    raise typer.Exit(int(beyond is not None))
