"""Maintenance windows as declared, as values of one moment."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lehr.control.maintenance import Window, occurrence
from lehr.store.records.maintenance import MaintenanceRow


def windows_at(rows: Iterable[MaintenanceRow], now: float) -> list[Window]:
    """Return the current or next time of each window that is not over."""
    found: list[Window] = []
    for row in rows:
        at = occurrence(row.starts_at, row.duration_s, row.repeat, now)
        if at is not None:
            begin, end = at
            found.append(Window(row.node, begin - now, end - now, describe(row, begin, end)))
    return found


def describe(row: MaintenanceRow, begin: float, end: float) -> str:
    """Return e.g. ``of node n1, 2026-12-01 02:00 to 06:00 UTC: new drivers``."""
    first, last = time.localtime(begin), time.localtime(end)
    same_day = first[:3] == last[:3]
    until = time.strftime("%H:%M %Z" if same_day else "%Y-%m-%d %H:%M %Z", last)
    nodes = "all nodes" if row.node is None else f"node {row.node}"
    text = f"of {nodes}, {time.strftime('%Y-%m-%d %H:%M', first)} to {until}"
    return f"{text}: {row.note}" if row.note else text
