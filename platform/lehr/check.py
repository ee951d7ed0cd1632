"""One finding of a check of a machine: what was found, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    found: str
    fix: str | None = None
