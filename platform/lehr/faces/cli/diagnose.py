"""``lehr diagnose``: what is wrong with a run by its curves, also those of other tools."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.analysis.batches import EPOCH, passes_note
from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, console, escaped, notes, print_alert, print_json, warn
from lehr_trainer import extras

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lehr.analysis.curve_files import FileCurves
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.streams import AlertView, MetricInfo

app = typer.Typer(rich_markup_mode=None)
_WARMUP_SHARE = 0.02
_RUN = "run:"
"""Before a run's name, where a file has the same."""
_SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".json", ".wandb", ".txt", ".log"})


@app.command("diagnose")
def diagnose(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="Name or id of a run, or a file or folder: a run directory or events.jsonl of "
            "Lehr, CSV, JSON lines, TensorBoard event files, a W&B offline file. If a file here "
            "has the name of a run, run:NAME is the run.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=NAME",
            help="Read METRIC (loss, val_loss, grad_norm, lr, ...) from the column or tag NAME of "
            "the file. May be repeated. Not needed for usual names.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Planned number of steps. Default: as in the file, or its last step."
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of warmup steps, which are not judged. Default: the number in the file, "
            "else where its learning rate stops rising, else 2 % of the steps.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find problems in the curves of a run, or of a file from any tool. A file needs no server.

    JSON: {diagnosis: {source, format, rows, last_step, total_steps, warmup_steps, alerts:
    [AlertView], unjudged: {rule: [what it needs]}, warnings: [...], notes: [...]}}.
    """
    path = Path(source)
    of_files = bool(metric) or steps is not None or warmup is not None
    named = os.sep in source or path.suffix in _SUFFIXES
    if source.startswith(_RUN):
        found, alerts = _of_run(source.removeprefix(_RUN))
    elif named or path.exists():
        extras.need("numpy")
        try:
            found, alerts = _of_file(path, metric or [], steps, warmup)
        except UserError as error:
            if path.is_dir() and os.sep not in source:
                error.hint = f"{error.hint}\n  A run of this name: lehr diagnose {_RUN}{source}"
            raise
    elif of_files:
        raise UserError(
            f"{source}: --metric, --steps and --warmup are for files, and there is no such file."
        )
    else:
        found, alerts = _of_run(source)
    note = passes_note(found.pop("passes"))
    found["warnings"] = [] if note is None else [note]
    codes = {alert.code for alert in alerts}
    found["unjudged"] = {code: n for code, n in found["unjudged"].items() if code not in codes}
    if as_json:
        print_json({"diagnosis": {**found, "alerts": alerts}})
    else:
        _print(found, alerts)


def _of_run(ref: str) -> tuple[dict[str, Any], list[AlertView]]:
    run = connect().run(ref)
    detail = run.detail
    logged = {one.name: one for one in run.metrics()}
    epoch = logged.get(EPOCH)
    found: dict[str, Any] = {
        "source": run.name,
        "format": "run",
        "rows": None,
        "last_step": detail.step,
        "total_steps": detail.total_steps,
        "warmup_steps": None,
        "unjudged": _unjudged(detail, logged.values()),
        "passes": None if epoch is None else epoch.last,
        "notes": [],
    }
    return found, run.alerts()


def _unjudged(run: RunDetail, logged: Iterable[MetricInfo]) -> dict[str, list[str]]:
    """Return what rules lack to judge a run; empty on a machine without numpy."""
    if find_spec("numpy") is None:
        return {}
    from lehr.analysis.diagnosis import unjudged
    from lehr_trainer.configs.schedule import ScheduleConfig

    train = run.spec.get("train")
    total = run.total_steps or (run.step if run.state == "completed" else None)
    warmup = ScheduleConfig.model_validate(train["schedule"]).warmup(total or 0) if train else 0
    points = {
        one.name: (one.points, round(one.points * (1 - warmup / max(one.last_step, warmup, 1))))
        for one in logged
    }
    return {str(code): lacks for code, lacks in unjudged(points, total).items()}


def _of_file(
    path: Path, metric: list[str], steps: int | None, warmup: int | None
) -> tuple[dict[str, Any], list[AlertView]]:
    from lehr.analysis import diagnosis
    from lehr.analysis.curve_files import read_curves
    from lehr.analysis.curve_files.names import overrides
    from lehr.schemas.streams import AlertView

    given = overrides(metric)
    with notes().status(f"Reading {escaped(str(path))}"):
        file = read_curves(path, given)
    total = steps or max(file.total_steps or 0, file.last_step)
    warmup_steps, assumed = _warmup(file, total, warmup)
    alerts = diagnosis.diagnose(
        file.curves, total_steps=total, warmup_steps=warmup_steps, changes=file.changes
    )
    points = {
        name: (len(curve), sum(step > warmup_steps for step in curve.steps))
        for name, curve in file.curves.items()
    }
    epoch = file.curves.get(EPOCH)
    found = {
        "source": str(path),
        "format": file.form,
        "rows": file.rows,
        "last_step": file.last_step,
        "total_steps": total,
        "warmup_steps": warmup_steps,
        "unjudged": diagnosis.unjudged(points, total),
        "passes": epoch.values[-1] if epoch is not None and len(epoch) else None,
        "notes": [*file.remarks, *assumed],
    }
    views = [AlertView.model_validate(alert, from_attributes=True) for alert in alerts]
    return found, views


def _warmup(file: FileCurves, total: int, given: int | None) -> tuple[int, list[str]]:
    """Return the warmup steps, and what was assumed of them."""
    known = given if given is not None else file.warmup_steps
    if known is not None:
        return known, []
    rates = file.curves.get("train/lr")
    # A rate that is not finite cannot be judged.
    points = zip(rates.steps, rates.values, strict=True) if rates is not None else ()
    known_rates = [(step, value) for step, value in points if math.isfinite(value)]
    if known_rates:
        first = max(known_rates, key=lambda point: point[1])[0]
        # A rate that never rises has no warmup; one that rises for half of the run is no warmup.
        if known_rates[0][0] < first < 0.5 * total:
            return first, [f"The learning rate rises until step {first:,}: taken for the warmup."]
    assumed = round(_WARMUP_SHARE * total)
    return assumed, [f"The first {assumed:,} steps are taken for the warmup (--warmup)."]


def _print(found: dict[str, Any], alerts: list[AlertView]) -> None:
    out = console()
    rows = f"{found['rows']:,} rows, " if found["rows"] is not None else ""
    last = found["last_step"]
    step = formats.steps(last, found["total_steps"]) if last else ""
    out.print(f"{escaped(found['source'])}: {found['format']}, {rows}{step or 'no step yet'}")
    for alert in alerts:
        out.print()
        print_alert(alert)
    if not alerts:
        silent = len(found["unjudged"])
        out.print(f"\nNothing wrong was found{f'; {silent} rules could not judge' * bool(silent)}.")
    for text in found["warnings"]:
        out.print()
        warn(text)
    if found["unjudged"]:
        lacks: dict[str, list[str]] = {}
        for code, missing in found["unjudged"].items():
            lacks.setdefault(", ".join(missing), []).append(code)
        out.print("\nNot judged:")
        for missing, codes in lacks.items():
            out.print(f"  {', '.join(codes)}: needs {escaped(missing)}", highlight=False)
    if found["notes"]:
        out.print()
    for note in found["notes"]:
        out.print(f"  {escaped(note)}", style="dim")
