"""An alert of a run as text: its name, and below it why and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.faces.cli.output import console, escaped, warn

if TYPE_CHECKING:
    from lehr.schemas.streams import AlertView


def print_alert(alert: AlertView) -> None:
    warn(alert.title)
    out = console()
    for line in alert.explanation:
        out.print(f"  [dim]{line.name:<6}[/]  {escaped(line.text)}")
