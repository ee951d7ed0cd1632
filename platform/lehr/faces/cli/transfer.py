"""``lehr transfer``: the learning rate of a sweep, carried to a larger training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.output import JsonOption, console, escaped, fitting, print_json, table, warn
from lehr.faces.cli.plan import OverridesArgument, read_spec
from lehr.faces.client.transport import save
from lehr.schemas.sweeps import TransferView

app = typer.Typer(rich_markup_mode=None)


@app.command("transfer")
def transfer(
    ref: Ref,
    to: Annotated[
        str,
        typer.Option(metavar="FILE", help="Spec of the run or rollout that needs a learning rate."),
    ],
    overrides: OverridesArgument = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Rule that scales the rate: quarter, width, keep or step_law. Default: quarter, "
            "the best rule on published runs."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the spec with the rate, and the reasons as comments."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Transfer the best learning rate of a sweep to a larger training.

    Shows the rate with its interval, and the rate by each of the other rules. Warns if a rule is
    used outside its domain, and if rules disagree. The sweep may still be running. Nothing is
    launched.

    JSON: {transfer: TransferView}.
    """
    if output is not None and to != "-" and output.resolve() == Path(to).resolve():
        raise UserError(
            f"-o {output} would replace the spec that --to reads, with its comments.",
            hint="Name another file.",
        )
    spec = read_spec(to, overrides)
    if spec.kind == "sweep":
        raise UserError(
            f"{to} is a sweep; a learning rate can be transferred to a run or a rollout only.",
            hint="Give the file of a run or of a rollout.",
        )
    found = connect().find_sweep(ref).transfer(spec, rule=rule)
    if output is not None:
        save(found.yaml.encode(), output)
    if as_json:
        print_json({"transfer": found})
        return
    _show(found)
    out = console()
    if output is None:
        out.print("\n  Write the spec with this rate: add -o FILE", style="dim")
    else:
        verb = "submit" if spec.kind == "run" else "rollout"
        out.print(f"\n{escaped(str(output))}: the spec with this rate and its reasons")
        out.print(f"  Launch it: lehr {verb} {escaped(str(output))}", style="dim")


def _show(found: TransferView) -> None:
    out = console()
    near = formats.scientific(found.rate, 3)
    out.print(f"[bold]{near}[/]  for {escaped(found.target)}, from sweep {escaped(found.sweep)}")
    if found.likely is not None and found.sure is not None:
        out.print(
            f"  The best is between {_between(found.likely)} with 68 %, and "
            f"{_between(found.sure)} with 95 %."
        )
    out.print(f"  The sweep's own best rate: {formats.scientific(found.from_rate, 3)}\n")
    changes = table(
        "",
        "sweep",
        "target",
        "ratio",
        "factor",
        "rule",
        right=("sweep", "target", "ratio", "factor"),
    )
    for one in found.changes:
        changes.add_row(
            one.quantity,
            formats.amount(one.source),
            formats.amount(one.target),
            f"{one.ratio:.3g}",
            formats.NOTHING if one.factor is None else f"{one.factor:.3g}",
            one.formula or "not used",
        )
    out.print(fitting(changes, out, fold="rule"))
    out.print()
    rules = table("rule", "rate", "formula", "domain", right=("rate",))
    for rule in found.rules:
        rules.add_row(
            f"{rule.name} *" if rule.chosen else rule.name,
            formats.scientific(rule.rate, 3),
            rule.formula,
            f"outside: {rule.outside}" if rule.outside else "inside",
            style="bold" if rule.chosen else None,
        )
    out.print(fitting(rules, out, fold=("formula", "domain")))
    for warning in found.warnings:
        warn(warning)


def _between(both: tuple[float, float]) -> str:
    return f"{formats.scientific(both[0], 2)} and {formats.scientific(both[1], 2)}"
