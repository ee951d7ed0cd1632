"""Groups of runs by what a user names: paths of the config, metrics, tags, the project.

A metric has a group for each value if these are few and whole, else parts with about equally many
runs. ``val/loss<2.5`` names the value that divides the runs.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from lehr import formats

_FEW = 8
"""A metric with at most so many values, all of them whole numbers, has a group for each."""
_QUARTERED = 8
"""So many runs are divided into four parts, fewer into two."""
_DIGITS = 17
_DIVIDED = re.compile(r"(.+?)\s*<\s*([-+\d.eE]+)")


class UnknownKey(Exception):
    """No run has a path, a metric or a tag of this name."""


@dataclass(frozen=True)
class GroupedRun:
    run_id: str
    config: Mapping[str, Any]
    """By dotted path."""
    project: str
    tags: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each."""


def group_names(runs: Sequence[GroupedRun], by: str) -> list[str]:
    """Return the name of each run's group. ``by`` is one key, or several with commas between them.

    Raises:
        UnknownKey: with the key that no run has.
    """
    columns = [_column(runs, key.strip()) for key in by.split(",") if key.strip()]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]


def spread(values: Iterable[float | None]) -> tuple[int, float | None, float | None]:
    """Return number, mean and sample standard deviation of the finite values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    mean = statistics.fmean(known) if known else None
    return len(known), mean, statistics.stdev(known) if len(known) > 1 else None


def edges(values: Iterable[float]) -> list[float] | None:
    """Return where the parts begin, except the first; None if each value is a group of its own."""
    finite = sorted(value for value in values if math.isfinite(value))
    if len(set(finite)) <= _FEW and all(float(value).is_integer() for value in finite):
        return None
    parts = 4 if len(finite) >= _QUARTERED else 2
    found: list[float] = []
    for part in range(1, parts):
        # Equal values are in one part.
        at = finite.index(finite[part * len(finite) // parts])
        if at and (edge := _between(finite[at - 1], finite[at])) not in found:
            found.append(edge)
    return found


def bin_name(name: str, value: float | None, at: Sequence[float] | None) -> str:
    """Name the group of a value: ``val/loss 1.8 to 2``."""
    if value is None:
        return f"no {name}"
    if not math.isfinite(value):
        return f"{name} not finite"
    if at is None:
        return f"{name} {_plain(value)}"
    if not at:
        return name
    below = sum(edge <= value for edge in at)
    if below == 0:
        return f"{name} below {_plain(at[0])}"
    if below == len(at):
        return f"{name} from {_plain(at[-1])}"
    return f"{name} {_plain(at[below - 1])} to {_plain(at[below])}"


def _column(runs: Sequence[GroupedRun], key: str) -> list[str]:
    if key == "project":
        return [run.project for run in runs]
    if key == "tag":
        return [", ".join(sorted(run.tags)) or "no tag" for run in runs]
    if key.startswith("tag:"):
        tag = key.removeprefix("tag:")
        return [tag if tag in run.tags else f"not {tag}" for run in runs]
    path = _path(runs, key)
    if path is not None:
        last = path.rpartition(".")[2]
        values = [run.config.get(path) for run in runs]
        return [
            f"no {last}" if value is None else f"{last} {formats.parameter(value, path)}"
            for value in values
        ]
    name, edge = _divided(key)
    measured = [run.metrics.get(name) for run in runs]
    if all(value is None for value in measured):
        raise UnknownKey(name)
    at = edges(value for value in measured if value is not None) if edge is None else [edge]
    return [bin_name(name, value, at) for value in measured]


def _path(runs: Sequence[GroupedRun], key: str) -> str | None:
    """Return the path that a key means: itself, or the shortest that ends with it."""
    paths = {path for run in runs for path in run.config}
    ends = [path for path in paths if path.lower().endswith(f".{key.lower()}")]
    return key if key in paths else min(ends, key=lambda path: (len(path), path), default=None)


def _divided(key: str) -> tuple[str, float | None]:
    found = _DIVIDED.fullmatch(key)
    try:
        return (found[1], float(found[2])) if found else (key, None)
    except ValueError:
        return key, None


def _between(low: float, high: float) -> float:
    """Return the shortest number that is more than ``low`` and at most ``high``."""
    middle = low + (high - low) / 2
    for digits in range(1, _DIGITS + 1):
        # A tie rounds up, not to the even digit.
        rounding = Context(prec=digits, rounding=ROUND_HALF_UP)
        found = float(rounding.create_decimal(Decimal(middle)))
        if low < found <= high:
            return found
    return high


def _plain(value: float) -> str:
    mantissa, e, exponent = f"{value:.12g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa
