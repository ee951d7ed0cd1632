"""Rows of text: CSV files, JSON lines, and the events of Lehr's own runs."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from pydantic import ValidationError

from lehr.analysis.curve_files.collector import (
    CurveRow,
    Points,
    Remark,
    Resumption,
    RunFacts,
    unreadable,
)
from lehr.analysis.curve_files.names import bare, no_such_name
from lehr.specs.stored import StoredSpec
from lehr_log.steps import NAMES
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.files import open_regular

LONGEST_LINE = 1_000_000
"""Characters of a cell, or of the names of columns; a longer one is none of metrics."""
LONGEST_RECORD = 8 << 20  # Bytes of a line of JSON, as in the index of the server.
LARGEST_STEP = 2**62
CLOCKS = {"timestamp", "_timestamp", "wall time", "wall_time"}  # In seconds since 1970.
Wants = Callable[[str], bool]


def csv_points(path: Path, wants: Wants, given: set[str], *, growing: bool = False) -> Points:
    """Yield the rows of a CSV file with a header; ``,``, ``;`` or tab between cells.

    ``growing``: a program is writing it. Only whole lines are read, and there may be none yet.

    Raises:
        UserError: no header, no rows, a column of ``given`` that is not there, or a cell of a
            metric that is no number.
    """
    csv.field_size_limit(min(sys.maxsize, LONGEST_LINE))
    content = open_regular(path, follow=True)
    with io.TextIOWrapper(content, newline="", encoding="utf-8-sig") as file:
        try:
            first = file.readline(LONGEST_LINE)
            if not growing:
                yield from _csv_rows(path, first, file, wants, given)
            elif whole := [line for line in file if first.endswith("\n") and line.endswith("\n")]:
                yield from _csv_rows(path, first, whole, wants, given)
        except UnicodeDecodeError as error:
            raise unreadable(path, f"not text in UTF-8 (byte {error.start:,}).") from None
        except csv.Error as error:
            raise unreadable(path, f"not CSV: {error}.") from None


def _csv_rows(path: Path, first: str, rest: Iterable[str], wants: Wants, given: set[str]) -> Points:
    if not first.strip():
        raise unreadable(path, "the first line is empty; expected the names of columns.")
    if len(first) == LONGEST_LINE:
        raise unreadable(path, f"the first line is longer than {LONGEST_LINE:,} characters.")
    delimiter = max(",;\t", key=first.count)
    header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
    if all(_is_number(name) for name in header):
        raise unreadable(
            path,
            f"line 1 holds numbers ({', '.join(header[:4])}); expected the names of columns.",
            'Add a first line such as "step,loss".',
        )
    for name in given:
        if name not in header:
            raise no_such_name(path, name, header)
    at = _step_column(header)
    if at is None:
        yield Remark("There is no column of steps, so rows are counted from 1.")
    clocks = [i for i, name in enumerate(header) if name.lower() in CLOCKS]
    columns = [(i, n) for i, n in enumerate(header) if i not in {at, *clocks} and wants(n)]
    rows = csv.reader(rest, delimiter=delimiter)
    empty, count = 0, 0
    for count, cells in enumerate(rows, 1):
        if not any(cells):
            continue
        line = count + 1
        if len(cells) > len(header):
            raise unreadable(
                path, f"line {line:,} has {len(cells)} cells, but the header names {len(header)}."
            )
        values = {}
        for i, name in columns:
            text = cells[i].strip() if i < len(cells) else ""
            if not text:
                empty += 1
                continue
            values[name] = _number(path, line, name, text)
        if at is not None and (at >= len(cells) or not cells[at].strip()):
            raise unreadable(path, f"line {line:,} has no {header[at]}.")
        step = count if at is None else _step(path, line, header[at], cells[at])
        if values:
            times = [_number(path, line, header[i], cells[i]) for i in clocks if any(cells[i:])]
            yield CurveRow(step, values, line, times[0] if times else None)
    if not count:
        raise unreadable(path, "there are no rows after the names of columns.")
    if empty:
        yield Remark(f"{empty:,} empty cells are skipped.")


def jsonl_points(path: Path, wants: Wants) -> Points:
    """Yield the rows of JSON lines, one object of names and numbers each.

    Raises:
        UserError: a line is no object, or a metric of it is no number, or no line has steps.
    """
    for line, record in json_lines(path):
        names = [*record]
        at = _step_column(names)
        values = {}
        for name, value in record.items():
            if (at is not None and name == names[at]) or value is None or not wants(name):
                continue
            values[name] = _number(path, line, name, value)
        step = line if at is None else _step(path, line, names[at], record[names[at]])
        if values:
            yield CurveRow(step, values, line)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with their lines; a torn last line is skipped.

    Raises:
        UserError: a line is not a JSON object.
    """
    with path.open("rb") as file:
        for line, text in enumerate(iter(lambda: file.readline(LONGEST_RECORD), b""), 1):
            if len(text) == LONGEST_RECORD and not text.endswith(b"\n"):
                raise unreadable(path, f"line {line:,} is longer than {LONGEST_RECORD:,} bytes.")
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                if not text.endswith(b"\n"):
                    return
                raise unreadable(path, f"line {line:,} is not JSON.") from None
            if not isinstance(record, dict):
                raise unreadable(path, f"line {line:,} is not a JSON object.")
            yield line, record


def _step_column(names: list[str]) -> int | None:
    low = [bare(name).lower() for name in names]
    return next((low.index(step) for step in NAMES if step in low), None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(path: Path, line: int, name: str, value: Any) -> float:
    if not isinstance(value, (list, dict, bool)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    shown = str(value) if len(str(value)) <= 40 else str(value)[:40] + "..."
    raise unreadable(
        path,
        f"line {line:,}, {name}: {shown!r} is not a number.",
        "Leave a missing value empty; NaN and inf are numbers.",
    )


def _step(path: Path, line: int, name: str, value: Any) -> int:
    if isinstance(value, str) and len(value) < 18 and value.isascii() and value.isdecimal():
        return int(value)  # Nearly all; the rest is only for the others.
    number = _number(path, line, name, value)
    if not math.isfinite(number) or number < 0 or number != int(number) or number >= LARGEST_STEP:
        raise unreadable(
            path, f"line {line:,}, {name}: {value} is no step; expected a whole number from 0 on."
        )
    return int(number)


def streams_of(folder: Path) -> list[Path]:
    """Return the streams of a run directory, or of one attempt's, in the order of attempts."""
    own = folder / layout.EVENTS
    if own.is_file():
        return [own]
    attempts = [path for path in folder.glob(f"attempt-*/{layout.EVENTS}") if path.is_file()]
    return sorted(attempts, key=lambda path: int(path.parent.name.rpartition("-")[2]))


def is_lehr(record: dict[str, Any]) -> bool:
    """Whether a line is a record of Lehr's trainer."""
    return isinstance(record.get("kind"), str) and "time" in record


def lehr_points(paths: list[Path]) -> Points:
    """Yield the points of the streams of one run's attempts, in order."""
    yield from _config(paths[0])
    skipped = 0
    for path in paths:
        for line, record in json_lines(path):
            kind, step = record.get("kind"), record.get("step")
            if kind == "started" and _is_step(record.get("total_steps")):
                yield RunFacts(total_steps=record["total_steps"])
            if kind == "resumed" and _is_step(step):
                yield Resumption(step)
            if kind not in {"metrics", "evaluation"}:
                continue
            try:
                values = {name: float(value) for name, value in record["values"].items()}
            except (KeyError, AttributeError, TypeError, ValueError, OverflowError):
                skipped += 1
                continue
            if not _is_step(step):
                skipped += 1
                continue
            yield CurveRow(step, values, f"line {line:,} of {path.name}")
    if skipped:
        yield Remark(f"{skipped:,} records without a step or readable values are skipped.")


def _is_step(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_STEP


def _config(path: Path) -> Points:
    """Yield warmup and stages from the config beside the streams, if there is one."""
    for folder in (path.parent, path.parent.parent):
        found = folder / layout.CONFIG
        if not found.is_file():
            continue
        try:
            config = TrainConfig.model_validate(yaml.safe_load(found.read_text()))
        except (OSError, yaml.YAMLError, ValidationError):
            yield Remark(f"{found} is not used: it is no config of a training.")
            return
        stored = StoredSpec({"train": config.model_dump(mode="json")})
        yield RunFacts(config.steps, stored.warmup_steps, stored.changes)
        return
