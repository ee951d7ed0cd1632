"""Format numbers, durations and sparklines for people. An unknown value is a dash, never 0.

The command line, the notebook and the sentences of analyses share these formats.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lehr.base.names import is_rate

NOTHING = "—"
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of the dots of a Braille pattern, by row and column."""
_ORDINARY = (1e-3, 1e4)
_ORDINARY_RATE = 1e-2
_WHOLE = 1e7
_CLOCKS_S = 1.0  # The clocks of two machines may differ by so much.


def count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def steps(done: int, total: int) -> str:
    """Format progress: ``step 412 of 1,000``, or ``step 412`` for a total of 0: not known."""
    return f"step {done:,} of {total:,}" if total else f"step {done:,}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 node``, ``8 GPUs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def si(value: float | None) -> str:
    """Format a rate: 31.2k, 402k, 1.24M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,950 would round to "1000k".
        if abs(value) >= limit * (1 - 0.5 * 10**-3):
            return f"{_digits(value / limit, 3)}{suffix}"
    return _digits(value, 3)


def amount(value: float) -> str:
    """Format a number of units, layers or tokens: exact below ten thousand, else as 65.5k."""
    return f"{value:g}" if abs(value) < 10_000 else si(value)


def millions(value: int | None) -> str:
    """Format numbers of parameters and tokens: 755.0 M, 1.24 B, 65.5 M, 12.3 k."""
    if value is None:
        return NOTHING
    for limit, suffix, places in ((1e12, "T", 2), (1e9, "B", 2), (1e6, "M", 1), (1e3, "k", 1)):
        if value >= limit:
            return f"{value / limit:.{places}f} {suffix}"
    return str(value)


def size(value: float | None) -> str:
    """Format bytes in powers of 1000, as on the labels of disks and GPUs: 61.3 GB."""
    if value is None:
        return NOTHING
    for limit, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.1f} {suffix}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """Format a duration: 12 s, 35 m, 9 h 12 m, 3 d 4 h; a dash below 0, between two clocks."""
    if seconds is None or not math.isfinite(seconds) or seconds < -_CLOCKS_S:
        return NOTHING
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def ago(at: float | None, now: float | None = None) -> str:
    """Format an age: 35 m ago. A time in the future, by a clock that was set back: 35 m ahead."""
    if at is None:
        return NOTHING
    since = (now or time.time()) - at
    return f"{duration(since)} ago" if since >= -_CLOCKS_S else f"{duration(-since)} ahead"


def loss(value: float | None) -> str:
    """Format a loss with four significant digits: 5.204, 12.26, nan."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if 0.1 <= abs(value) < 10 else f"{value:#.4g}".rstrip(".")


def share(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value * 100:.0f} %"


def parameter(value: Any, path: str = "") -> str:
    """Format a swept value: 1.0e-4, 16, adamw; a learning rate, by its path, as 3.0e-3 or 0.01."""
    if isinstance(value, list):
        return str([float(f"{one:g}") if isinstance(one, float) else one for one in value])
    if isinstance(value, bool) or not isinstance(value, float):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return NOTHING if value is None else text
    if value.is_integer() and abs(value) < _WHOLE:
        return f"{value:.0f}"
    rate = is_rate(path) or not _ORDINARY[0] <= abs(value) < _ORDINARY[1]
    return scientific(value) if rate else f"{value:g}"


def point(parameters: Mapping[str, Any]) -> str:
    """Name a point of a sweep by its parameters: ``lr 1.0e-3, width 64``."""
    named = zip(short_paths(list(parameters)), parameters.items(), strict=True)
    return ", ".join(f"{name} {parameter(value, path)}" for name, (path, value) in named)


def scientific(value: float, digits: int = 4) -> str:
    """Format as 1.0e-4: at least two digits, and no leading zero in the exponent.

    From 0.01 to 9,999 it is a plain number, and so is 0, as on the dashboard.
    """
    if not value or _ORDINARY_RATE <= abs(value) < _ORDINARY[1]:
        return f"{float(f'{value:.{digits}g}'):g}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent)}"


def sparkline(values: Sequence[float], width: int = 8, *, unicode: bool = True) -> str:
    """Draw a curve in a few characters. A value that is not finite is an x."""
    bars = _BARS if unicode else _ASCII_BARS
    points = _thin(values, width)
    finite = [value for value in points if math.isfinite(value)]
    if not points:
        return ""
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    if not math.isfinite(high - low):
        return sparkline([value / 4 for value in points], width, unicode=unicode)
    span = high - low
    letters = []
    for value in points:
        if not math.isfinite(value):
            letters.append("x")
        elif span == 0:
            letters.append(bars[0])
        else:
            letters.append(bars[min(int((value - low) / span * len(bars)), len(bars) - 1)])
    return "".join(letters)


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw two or more finite values, evenly spaced, in lines of Braille patterns."""
    low, span, last = min(values), (max(values) - min(values)) or 1.0, 2 * width - 1
    rows = [round((low + span - value) / span * (4 * height - 1)) for value in values]
    dots = [[0] * width for _ in range(height)]
    columns = [rows[round(column * (len(rows) - 1) / last)] for column in range(2 * width)]
    for column, (before, row) in enumerate(zip([columns[0], *columns], columns, strict=False)):
        for dot in range(min(before, row), max(before, row) + 1):
            dots[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
    return ["".join(chr(0x2800 + pattern) for pattern in line) for line in dots]


def dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 0.01 else "under $0.01"


def gpu_hours(value: float) -> str:
    return f"{value:,.2f} GPU-hours" if value >= 0.01 else "under 0.01 GPU-hours"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Join names with commas; count those beyond the first few."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def short_paths(paths: Sequence[str]) -> list[str]:
    """Shorten dotted paths to the last names that still differ from each other.

    ``name`` alone would be that of the run.
    """
    names = []
    for path in paths:
        parts = path.split(".")
        for used in range(1, len(parts) + 1):
            name = ".".join(parts[-used:])
            alike = sum(other == path or other.endswith(f".{name}") for other in paths)
            if alike == 1 and name != "name":
                break
        names.append(name)
    return names


def _thin(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    last = len(values) - 1
    return [values[round(index * last / (width - 1))] for index in range(width)]


def _digits(value: float, digits: int) -> str:
    whole = len(str(int(abs(value))))
    return f"{value:.{max(digits - whole, 0)}f}"
