"""``lehr tag``: add, remove and show tags."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lehr.cli.connect import Ref, connect
from lehr.cli.output import JsonOption, console, escaped, print_json
from lehr.errors import UserError, nearest

app = typer.Typer(rich_markup_mode=None)
_VERBS = ("add", "remove")


@app.command("tag")
def tag(
    ref: Ref,
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|remove TAG...]", help="Tags to add or remove. Without them: list tags."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add or remove tags of a run, or of all runs of a sweep.

    Find runs by tag: lehr ls --tag WORD. JSON: {run: RunDetail} or {sweep: SweepDetail}.
    """
    from lehr.client import Sweep

    verb, tags = _read(change or [])
    found = connect().find(ref)
    runs = found.runs() if isinstance(found, Sweep) else [found]
    for run in runs if verb else ():
        run.tag(*tags) if verb == "add" else run.untag(*tags)
    if as_json:
        # The sweep was read before its runs changed.
        key = "sweep" if isinstance(found, Sweep) else "run"
        print_json({key: found.refresh().detail})
        return
    for run in runs:
        tags_text = " ".join(escaped(one) for one in run.tags) or "[dim]no tags[/]"
        console().print(f"{escaped(run.name)} ({run.id}): {tags_text}", highlight=False)


def _read(change: list[str]) -> tuple[Literal["add", "remove"] | None, list[str]]:
    if not change:
        return None, []
    verb, *tags = change
    if verb not in _VERBS:
        near = nearest(verb, _VERBS) or "add"
        raise UserError(
            f"{verb!r} is neither add nor remove.",
            hint=f"lehr tag RUN {near} {' '.join(tags or [verb])}",
        )
    if not tags:
        raise UserError(f"lehr tag RUN {verb}: no tag given.", hint=f"lehr tag RUN {verb} WORD")
    return ("add" if verb == "add" else "remove"), tags
