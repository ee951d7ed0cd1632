"""``lehr checkpoints``: list, save, verify, download, export and delete checkpoints of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from lehr.base import formats
from lehr.errors import NotFound, UserError
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.output import (
    JsonOption,
    YesOption,
    confirm,
    console,
    escaped,
    fitting,
    is_terminal,
    notes,
    print_json,
    print_result,
    say,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lehr.schemas.checkpoints import CheckpointView

app = typer.Typer(rich_markup_mode=None)


class _ListFirst(TyperGroup):
    """``lehr checkpoints RUN`` lists the run's checkpoints."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        words = [word for word in args if not word.startswith("-")]
        listed = len(words) == 1 and words[0] not in self.commands
        return super().resolve_command(ctx, ["ls", *args] if listed else args)


checkpoints = typer.Typer(cls=_ListFirst, rich_markup_mode=None, no_args_is_help=True)
app.add_typer(checkpoints, name="checkpoints")

StepOption = Annotated[int | None, typer.Option("--step", min=0, help="Step of the checkpoint.")]
AttemptOption = Annotated[
    int | None,
    typer.Option(
        "--attempt",
        min=1,
        help="Attempt that saved it. Default: the newest that saved at this step.",
    ),
]

TokenizerOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Path of the run's tokenizer on this machine. none: leave it out. "
        "Default: as in the run's config.",
    ),
]


@checkpoints.callback()
def about() -> None:
    """Save, list, verify, download, export or delete checkpoints of a run.

    With `checkpoints: {upload: s3://bucket/prefix}` in its spec, each is copied as it is written.
    """


@checkpoints.command("ls")
def ls(
    ref: Ref,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Include deleted checkpoints.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List a run's checkpoints.

    Shows the step, size, val/loss and location of each, and why it is kept.

    JSON: {run, checkpoints: [CheckpointView]}.
    """
    run = connect().run(ref)
    found = [one for one in run.checkpoints() if every or one.exists]
    if as_json:
        print_json({"run": run.id, "checkpoints": found})
        return
    if not found:
        notes().print(f"{run.name} ({run.id}) has no checkpoint.", markup=False)
        return
    console().print(checkpoints_table(found, console()))
    for one in found:
        if one.copy_error:
            notes().print(f"step {one.step:,}: {one.copy_error}", markup=False)


def checkpoints_table(shown: Sequence[CheckpointView], out: Console) -> Table:
    """Return a table with one row per checkpoint: what it is, and why it is kept."""
    rows = table(
        *("step", "attempt", "size", "val/loss", "saved", "", "copy", "kept as"),
        right=("step", "attempt", "size", "val/loss"),
    )
    for one in shown:
        marks = [word for word, so in (("latest", one.latest), ("best", one.best)) if so]
        rows.add_row(
            formats.count(one.step),
            str(one.attempt),
            formats.size(one.size_bytes),
            formats.loss(one.val_loss),
            formats.ago(one.created_at),
            ", ".join(marks) if one.exists else "gone",
            escaped(_copy(one)),
            escaped(", ".join(one.kept)),
        )
    return fitting(rows, out, fold="kept as", spare=("copy", "val/loss", "attempt"))


@checkpoints.command("save")
def save(ref: Ref, as_json: JsonOption = False) -> None:
    """Save a checkpoint of a running run after its current step. JSON: {run: RunDetail}."""
    run = connect().run(ref).checkpoint()
    text = f"{escaped(run.name)} ({run.id}) will save after its current step."
    more = f"\n[dim]  List it: lehr checkpoints ls {run.id}[/]"
    print_result({"run": run.detail}, text + more, as_json=as_json)


@checkpoints.command("verify")
def verify(
    ref: Ref, step: StepOption = None, attempt: AttemptOption = None, as_json: JsonOption = False
) -> None:
    """Read checkpoints and check their digests.

    Reads them completely, in every location.

    Without --step, reads all checkpoints of the run. Exit code 1 if one is damaged or incomplete.

    JSON: {run, ok, checkpoints: [CheckpointVerdict]}.
    """
    run = connect().run(ref)
    selected: list[tuple[int, int | None]] = [(step, attempt)] if step is not None else []
    if step is None:
        selected += [(one.step, one.attempt) for one in run.checkpoints() if one.exists]
    if not selected:
        raise NotFound(f"{run.name} ({run.id}) has no checkpoint.")
    verdicts = []
    for at, number in selected:
        with notes().status(f"Reading step {at:,}"):
            verdict = run.verify_checkpoint(at, attempt=number)
        verdicts.append(verdict)
        if as_json:
            continue
        for place in verdict.places:
            mark = "whole" if place.ok else "[red]damaged[/]"
            console().print(
                f"step {at:,}  {mark}  {escaped(place.place)}\n  {escaped(place.message)}"
            )
        if not verdict.places:
            console().print(f"step {at:,}  [red]in no location that the server can reach[/]")
    ok = all(verdict.ok for verdict in verdicts)
    if as_json:
        print_json({"run": run.id, "ok": ok, "checkpoints": verdicts})
    if not ok:
        raise typer.Exit(1)


@checkpoints.command("download")
def download(
    ref: Ref,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to create. It must not exist yet.")
    ],
    step: StepOption = None,
    attempt: AttemptOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download a checkpoint into a folder and check every digest. Continues an interrupted
    download.

    Without --step, downloads the newest checkpoint.

    JSON: {downloaded: {run, step, path, bytes}}; ``bytes`` is the size of DIR.
    """
    from lehr.faces.client.checkpoints import choose

    run = connect().run(ref)
    at = choose(run.detail, run.checkpoints(), "last").step if step is None else step
    with _download_bar(f"step {at:,}", quiet=as_json) as bar:
        run.download_checkpoint(at, folder, attempt=attempt, progress=bar)
    size = _bytes_in(folder)
    print_result(
        {"downloaded": {"run": run.id, "step": at, "path": str(folder), "bytes": size}},
        f"{escaped(str(folder))}: step {at:,} of {escaped(run.name)}, {formats.size(size)}",
        as_json=as_json,
    )


@checkpoints.command("export")
def export(
    ref: Ref,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    step: Annotated[
        str, typer.Option(metavar="N|best|last", help="Step of the checkpoint.")
    ] = "last",
    attempt: AttemptOption = None,
    average: Annotated[
        bool, typer.Option("--average", help="Export the average of its weights (train.average).")
    ] = False,
    tokenizer: TokenizerOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Export a model for `transformers`.

    Writes weights, config, tokenizer and a model card.

    Downloads the weights and converts them on this machine, which needs `lehr[trainer]`. DIR
    appears once it is complete.

    JSON: {exported: {run, path, bytes}}; ``bytes`` is the size of DIR.
    """
    at = parse_step(step)
    run = connect().run(ref)
    with _download_bar("weights", quiet=as_json) as bar:
        run.export_model(
            folder,
            at,
            attempt=attempt,
            average=average,
            tokenizer=tokenizer,
            overwrite=overwrite,
            progress=bar,
        )
    size = _bytes_in(folder)
    print_result(
        {"exported": {"run": run.id, "path": str(folder), "bytes": size}},
        f"{escaped(str(folder))}: model of {escaped(run.name)}, {formats.size(size)}",
        as_json=as_json,
    )


@checkpoints.command("average")
def average_checkpoints(
    refs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[@STEP]...",
            help="Runs, each with the step of a checkpoint, best or last (the default).",
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to create.")
    ],
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Compute val/loss of the mean, on this machine.")
    ] = False,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Average the weights of several checkpoints of one model, and export the mean.

    Writes a folder for `transformers`, whose average.json and model card list the checkpoints. The
    mean is of the fp32 weights, summed in float64.

    Needs `lehr[trainer]` on this machine. --evaluate needs the corpus, too: it scores the held-out
    set of the runs.

    JSON: {averaged: {path, bytes, ingredients: [{run, step, tokens, val_loss, digest}], values,
    validation_digest, device}}; the last three are null without --evaluate.
    """
    with _download_bar("weights", quiet=as_json) as bar:
        made = connect().average_models(
            [
                (ref, parse_step(step) if step else "last")
                for ref, _, step in (text.partition("@") for text in refs)
            ],
            folder,
            evaluate=evaluate,
            tokenizer=tokenizer,
            progress=bar,
        )
    size = _bytes_in(folder)
    text = f"{escaped(str(folder))}: mean of {len(refs)} checkpoints, {formats.size(size)}"
    if evaluate:
        losses = ", ".join(formats.loss(one["val_loss"]) for one in made["ingredients"])
        text += f"\n  val/loss {formats.loss(made['values']['val/loss'])}, of its parts {losses}"
    print_result({"averaged": {"path": str(folder), "bytes": size, **made}}, text, as_json=as_json)


@app.command("eval")
def evaluate_checkpoint(
    ref: Ref,
    step: Annotated[
        str, typer.Option(metavar="N|best|last", help="Step of the checkpoint.")
    ] = "last",
    tasks: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="File of a task; repeat it for several."),
    ] = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a checkpoint on tasks, and add the values to the run's curves at its step.

    Without --tasks, on those of its spec (train.evals), as they are set there. This machine needs
    `lehr[trainer]` and the files of the tasks. Doing so again adds nothing.

    JSON: {evaluated: {kind, time, step, tokens, values, validation_digest, tasks}}.
    """
    run = connect().run(ref)
    made = run.evaluate(parse_step(step), tasks or [], tokenizer=tokenizer)
    text = f"{escaped(run.name)} at step {made.step:,}:"
    text += "".join(f"\n  {name}  {value:.4f}" for name, value in made.values.items())
    print_result({"evaluated": made.model_dump(mode="json")}, text, as_json=as_json)


def parse_step(text: str, option: str = "--step") -> int | Literal["best", "last"]:
    """Parse the value of an option for the step of a checkpoint.

    Raises:
        UserError: it is no step.
    """
    if text == "best":
        return "best"
    if text == "last":
        return "last"
    if not text.isdecimal():
        raise UserError(f"{option} {text!r} is not a step: give a number, best or last.")
    return int(text)


@contextmanager
def _download_bar(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal."""
    if quiet or not is_terminal():
        yield None
        return
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=notes(), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@checkpoints.command("rm")
def rm(
    ref: Ref,
    step: Annotated[int, typer.Option(min=0, help="Step of the checkpoint.")],
    attempt: AttemptOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete one checkpoint and its copy. Shows first how much space it frees.

    JSON: {deleted: CheckpointDeletion}.
    """
    run = connect().run(ref)
    if not yes:
        weighed = run.checkpoint_deletion(step, attempt=attempt)
        for text in [*weighed.places, *weighed.notes]:
            say(f"  {text}")
        frees = formats.size(weighed.bytes)
        confirm(f"Delete step {step:,} of {run.name} ({run.id}) for good? It frees {frees}.")
    freed = run.delete_checkpoint(step, attempt=attempt)
    print_result(
        {"deleted": freed},
        f"step {step:,} of {escaped(run.name)}: {formats.size(freed.bytes)} freed",
        as_json=as_json,
    )


def _copy(one: CheckpointView) -> str:
    if one.copy_url is None or one.copy_state is None:
        return formats.NOTHING
    return one.copy_url if one.copy_state == "there" else f"{one.copy_state}: {one.copy_url}"
