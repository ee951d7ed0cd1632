"""Print findings of checks: ``lehr doctor`` and ``lehr node join``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lehr.check import Check
from lehr.cli.output import console, unicode_safe

_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
_MARKS = {"ok": "✓", "note": "!", "bad": "✗"}
_ASCII_MARKS = {"ok": "ok", "note": "!", "bad": "x"}


def show(checks: Sequence[Check]) -> None:
    from rich.markup import escape

    out = console()
    marks = _MARKS if unicode_safe() else _ASCII_MARKS
    for check in checks:
        style = _STYLES[check.status]
        name = escape(f"{check.name:<15}")
        out.print(f"[{style}]{marks[check.status]:<2}[/] {name}", end="")
        out.print(check.found, markup=False)
        if check.fix:
            out.print(f"   {'':<15}{check.fix}", markup=False, style="dim")


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [{"name": c.name, "status": c.status, "found": c.found, "fix": c.fix} for c in checks]


def bad(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.status == "bad"]
