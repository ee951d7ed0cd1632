"""Find out what a file is, read it, and return its curves."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lehr.analysis.curve import Curve
from lehr.analysis.curve_files import binary, text
from lehr.analysis.curve_files.collector import (
    Collector,
    Points,
    Remark,
    Resumption,
    RunFacts,
    unreadable,
)
from lehr.analysis.curve_files.names import no_such_name, nothing_known

Format = Literal["lehr", "csv", "jsonl", "tensorboard", "wandb"]
_KINDS = (
    "Expected a run directory or events.jsonl of Lehr, CSV, JSON lines, a TensorBoard event file "
    "or folder, or a W&B offline file."
)


@dataclass(frozen=True)
class FileCurves:
    """The curves of a run that a file holds."""

    form: Format
    curves: dict[str, Curve]  # By Lehr's names.
    rows: int  # Rows or records that were read.
    last_step: int
    total_steps: int | None  # As the file has it.
    warmup_steps: int | None
    changes: tuple[int, ...]
    remarks: list[str]  # What was assumed, thinned or left out, as sentences.


def read_curves(path: Path, given: dict[str, str] | None = None) -> FileCurves:
    """Read the curves of one run, a file or a folder, in bounded memory.

    ``given`` has metrics by the file's names, which go before the usual names.

    Raises:
        UserError: there is no such file, it is empty or of another kind, a value is no number,
            steps are out of order, or no metric is known.
    """
    given = given or {}
    collector = Collector(given)
    facts, remarks = RunFacts(), []
    try:
        form, points = _open(path, collector, given)
        for point in points:
            if isinstance(point, RunFacts):
                facts = RunFacts(
                    point.total_steps or facts.total_steps,
                    point.warmup_steps if point.warmup_steps is not None else facts.warmup_steps,
                    point.changes or facts.changes,
                )
            elif isinstance(point, Remark):
                remarks.append(point.text)
            elif isinstance(point, Resumption):
                collector.resume(point.step)
            else:
                collector.row(point.step, point.values, point.place)
    except OSError as error:
        raise unreadable(path, f"it cannot be read: {error.strerror}.") from None
    curves = collector.curves(path)
    for name in given:
        if name not in collector.names:
            raise no_such_name(path, name, collector.names)
    if not curves:
        raise nothing_known(path, collector.names)
    return FileCurves(
        form,
        curves,
        collector.rows,
        max(curve.steps[-1] for curve in curves.values()),
        facts.total_steps,
        facts.warmup_steps,
        facts.changes,
        [*remarks, *collector.remarks(curves)],
    )


def _open(path: Path, collector: Collector, given: dict[str, str]) -> tuple[Format, Points]:
    if not path.exists():
        raise unreadable(path, "there is no such file.")
    if path.is_dir():
        if found := text.streams_of(path):
            return "lehr", text.lehr_points(found)
        if found := binary.files_below(path, binary.TENSORBOARD, "TensorBoard", together=True):
            return "tensorboard", binary.tensorboard_points(found)
        if found := binary.files_below(path, binary.WANDB, "W&B", together=False):
            return "wandb", binary.wandb_points(found[0])
        raise unreadable(path, "the folder has no file with curves.", _KINDS)
    with path.open("rb") as file:
        head = file.read(8_192).removeprefix(codecs.BOM_UTF8)
    if not head:
        raise unreadable(path, "the file is empty.")
    if head.startswith(binary.MAGIC):
        return "wandb", binary.wandb_points(path)
    if "tfevents" in path.name:
        return "tensorboard", binary.tensorboard_points([path])
    if b"\0" in head:
        raise unreadable(path, "it is a binary file of an unknown format.", _KINDS)
    if head.lstrip().startswith(b"{"):
        first = head.lstrip().split(b"\n", 1)[0]
        try:
            record = json.loads(first)
        except (ValueError, RecursionError):
            record = {}
        if isinstance(record, dict) and text.is_lehr(record):
            return "lehr", text.lehr_points([path])
        return "jsonl", text.jsonl_points(path, collector.wants)
    if head.lstrip().startswith(b"["):
        raise unreadable(path, "it is one JSON array.", "Write one object a line (JSON lines).")
    return "csv", text.csv_points(path, collector.wants, {*given})
