"""Where the labels of a figure stand: on no other one, on no axis, and on few points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""

_ABOVE, _BELOW, _APART = 11, 4, 3
"""Pixels of a text above and below its baseline, and to another text."""
_DOT = 5  # Half of the symbol of a point.
_NEVER = 1000


def around(place: Point, half: float) -> list[Point]:
    """Return where a label ``2 * half`` wide may stand beside a point: its middle and baseline."""
    x, y = place
    side = half + 14
    return [
        (x, y - 14),
        (x, y + 24),
        (x + side, y + 4),
        (x - side, y + 4),
        (x, y - 30),
        (x, y + 40),
    ]


def arranged(
    wanted: Iterable[tuple[float, Sequence[Point]]],
    *,
    dots: Sequence[Point],
    rules: Sequence[float],
    room: Box,
) -> list[Point]:
    """Choose a place for each label, given with half its width and its places, the first of which
    is the best. ``rules`` are the vertical lines that a label should not cross.
    """
    found: list[Point] = []
    taken: list[Box] = []
    for half, places in wanted:
        low, high = room[0] + half, max(room[0] + half, room[2] - half)
        inside = [(min(max(x, low), high), y) for x, y in places]
        cost = partial(_cost, half, taken=tuple(taken), dots=dots, rules=rules, room=room)
        found.append(min(inside, key=cost))
        taken.append(_box(half, found[-1]))
    return found


def _box(half: float, place: Point) -> Box:
    x, y = place
    return x - half, y - _ABOVE, x + half, y + _BELOW


def _cost(
    half: float,
    place: Point,
    *,
    taken: Sequence[Box],
    dots: Sequence[Point],
    rules: Sequence[float],
    room: Box,
) -> int:
    box = left, top, right, bottom = _box(half, place)
    points = ((x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots)
    return (
        _NEVER * (top < room[1] or bottom > room[3])
        + _NEVER * sum(_overlap(box, other, _APART) for other in taken)
        + sum(_overlap(box, point, 0) for point in points)
        + sum(left < rule < right for rule in rules)
    )


def _overlap(a: Box, b: Box, apart: float) -> bool:
    across = a[0] < b[2] + apart and b[0] < a[2] + apart
    return across and a[1] < b[3] + apart and b[1] < a[3] + apart
