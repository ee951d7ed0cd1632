"""The round values of an axis, and where labels stand: on no other one, and on few points."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""

_ABOVE, _BELOW, _APART = 11, 4, 3
"""Pixels of a text above and below its baseline, and to another text."""
_DOT = 5  # Half of the symbol of a point.
_NEVER = 1000

# Rounded inwards: ten to the logarithm of the largest number is already too large.
_EXPONENTS = (math.log10(sys.float_info.min), math.log10(sys.float_info.max) - 1e-9)


def ticks(kind: str, low: float, high: float, most: int) -> list[float]:
    """Return about ``most`` round values between ``low`` and ``high``, which are exponents on a
    log axis.
    """
    if kind == "log":  # The margins of an axis may lie beyond the largest number.
        low, high = (min(max(one, _EXPONENTS[0]), _EXPONENTS[1]) for one in (low, high))
    if kind == "log" and high - low >= 1:
        every = max(1, round((high - low) / most))
        return [10.0**n for n in range(math.ceil(low), math.floor(high) + 1, every)]
    if kind == "log":
        inside = ticks("linear", 10**low, 10**high, most)
        return [value for value in inside if value > 0]
    span = high - low
    if span <= 0:
        return [low]
    rough = span / most
    scale: float = 10.0 ** math.floor(math.log10(rough))
    step = next(s * scale for s in (1, 2, 5, 10) if s * scale >= rough)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def around(place: Point, half: float) -> list[Point]:
    """Return where a label ``2 * half`` wide may stand beside a point: its middle and baseline."""
    x, y = place
    beside = [(x + half + 14, y + 4), (x - half - 14, y + 4)]
    return [(x, y - 14), (x, y + 24), *beside, (x, y - 30), (x, y + 40)]


def arranged(
    wanted: Iterable[tuple[float, Sequence[Point]]],
    dots: Sequence[Point],
    rules: Sequence[float],
    room: Box,
) -> list[Point]:
    """Choose a place for each label, given with half its width and its places, the best first.
    It should not cross the vertical ``rules``.
    """
    points = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    taken: list[Box] = []

    def cost(box: Box) -> int:
        outside = box[1] < room[1] or box[3] > room[3]
        return (
            _NEVER * (outside + sum(_overlap(box, other, _APART) for other in taken))
            + sum(_overlap(box, point, 0) for point in points)
            + sum(box[0] < rule < box[2] for rule in rules)
        )

    for half, places in wanted:
        right = max(room[0] + half, room[2] - half)
        inside = [(min(max(x, room[0] + half), right), y) for x, y in places]
        boxes = [(x - half, y - _ABOVE, x + half, y + _BELOW) for x, y in inside]
        taken.append(min(boxes, key=cost))
    return [((left + right) / 2, bottom - _BELOW) for left, _, right, bottom in taken]


def _overlap(a: Box, b: Box, apart: float) -> bool:
    across = a[0] < b[2] + apart and b[0] < a[2] + apart
    return across and a[1] < b[3] + apart and b[1] < a[3] + apart
