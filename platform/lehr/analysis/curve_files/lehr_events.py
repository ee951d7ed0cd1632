"""Points of Lehr's own runs: a run directory, an attempt's, or its events.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

import yaml
from pydantic import ValidationError

from lehr.analysis.curve_files.points import CurveRow, Points, Remark, Resumption, RunFacts
from lehr.analysis.curve_files.text import LARGEST_STEP, json_lines
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout


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


def points(paths: list[Path]) -> Points:
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
        yield RunFacts(
            config.steps,
            config.schedule.warmup(config.steps),
            config.batch.changes(config.steps),
        )
        return
