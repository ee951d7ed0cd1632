"""``lehr wandb``: mirror a run or a sweep to Weights & Biases, even after it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lehr.cli.connect import Ref, connect
from lehr.cli.output import JsonOption, console, escaped, print_json

if TYPE_CHECKING:
    from lehr.client import Run

app = typer.Typer(rich_markup_mode=None)
wandb = typer.Typer(
    help="Mirror runs to Weights & Biases.", rich_markup_mode=None, no_args_is_help=True
)
app.add_typer(wandb, name="wandb")


@wandb.callback()
def about() -> None:
    """Mirror runs to Weights & Biases.

    The server does it, with its own W&B key. To mirror from the start, set tracking.wandb in the
    spec.
    """


@wandb.command("mirror")
def mirror(
    ref: Ref,
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="online, offline (files on the server), or off.")
    ] = "online",
    project: Annotated[
        str | None, typer.Option(metavar="P", help="Project in W&B. Default: the run's project.")
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(metavar="E", help="Team or user in W&B. Default: that of the API key."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until everything is mirrored.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Mirror a run, or each run of a sweep, from its first event.

    A second call mirrors everything again from the beginning.

    JSON: {runs: [RunDetail]}.
    """
    from lehr.client import Sweep

    found = connect().find(ref)
    runs = found.runs() if isinstance(found, Sweep) else [found]
    chosen = _mode(mode)
    for run in runs:
        run.mirror(chosen, project=project, entity=entity)
    if wait:
        for run in runs:
            _finish(run)
    if as_json:
        print_json({"runs": [run.detail for run in runs]})
        return
    for run in runs:
        mirror_view = run.detail.wandb
        console().print(
            f"{escaped(run.name)}: {escaped(mirror_view.text) if mirror_view else 'not mirrored'}"
        )
        where = (mirror_view.url or mirror_view.folder) if mirror_view else None
        if where:
            console().print(f"  {escaped(where)}", style="dim")
    if not wait and chosen != "off":
        console().print(f"  Show progress: lehr show {escaped(runs[0].id)}", style="dim")


def _mode(text: str) -> Literal["online", "offline", "off"]:
    from lehr.errors import UserError, nearest

    for valid in ("online", "offline", "off"):
        if text == valid:
            return valid
    near = nearest(text, ("online", "offline", "off"))
    raise UserError(
        f"--mode is {text}; it must be online, offline or off.",
        hint=f"Did you mean {near}?" if near else None,
    )


def _finish(run: Run) -> None:
    """Wait until the mirror has all of the run so far, or has failed."""
    import time

    while True:
        mirror_view = run.refresh().detail.wandb
        if mirror_view is None or mirror_view.state in {"done", "failed"}:
            return
        if mirror_view.state == "mirroring" and not mirror_view.behind_bytes and not run.ended:
            return
        time.sleep(0.5)
