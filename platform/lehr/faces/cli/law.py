"""``lehr law``: what finished runs say of the loss and the best rate of a larger one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, console, escaped, print_json
from lehr.faces.cli.plan import read_spec

app = typer.Typer(rich_markup_mode=None)


@app.command("law")
def law(
    refs: Annotated[list[str], typer.Argument(metavar="REF...", help="Sweeps and runs.")],
    target: Annotated[
        str | None, typer.Option("--for", metavar="FILE", help="Spec of the run in question.")
    ] = None,
    parameters: Annotated[
        float | None,
        typer.Option(help="Without --for: parameters without embeddings, in the largest's shape."),
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Without --for: its tokens.")] = None,
    alone: Annotated[
        bool, typer.Option("--no-published", help="Published runs do not count as a weak prior.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict loss and learning rate of a larger run from finished runs of two sizes or more.

    Every number comes with its doubt. Nothing is launched.

    JSON: {law: LawView}.
    """
    spec: Any = None if target is None else read_spec(target, None)
    options = {"parameters": parameters, "tokens": tokens, "published": not alone}
    fitted = connect().law(*refs, spec=spec, **options)
    if as_json:
        print_json({"law": fitted})
        return
    for name, text in fitted.facts:
        console().print(f"[bold]{escaped(name)}[/]\n  {escaped(text)}", highlight=False)
