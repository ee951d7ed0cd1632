"""``lehr law``: what finished runs say of the loss and the best rate of a larger one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, console, escaped, print_json
from lehr.faces.cli.plan import read_spec

app = typer.Typer(rich_markup_mode=None)
_ENDED = ("completed", "failed", "pruned")
_MOST = 301  # Runs: one more than a law takes, so that it refuses them instead of some.


@app.command("law")
def law(
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="REF...", help="Sweeps and runs.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="Also the runs of this project.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--filter", help="Also runs whose name contains this text.")
    ] = None,
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
    client, named = connect(), list(refs or ())
    if project or search:
        runs = client.runs(project=project, search=search, states=_ENDED, limit=_MOST)
        named += [run.id for run in runs]
    if not named:
        raise UserError(
            "no sweep or run is named, or none that has ended matches.",
            hint="Name some: lehr law SWEEP...; or all of a project: lehr law --project NAME",
        )
    fitted = client.law(*named, spec=spec, **options)
    if as_json:
        print_json({"law": fitted})
        return
    for name, text in fitted.facts:
        console().print(f"[bold]{escaped(name)}[/]\n  {escaped(text)}", highlight=False)
