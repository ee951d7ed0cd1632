"""Alerts of a run: what the diagnosis of its curves found."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View
from lehr.specs.gates import AlertCode


class AlertView(View):
    code: AlertCode
    """Name of the diagnosis rule."""
    step: int
    """First step."""
    seen: str
    """What was seen, in words and figures."""
    advice: str
    """What to try, with a factor where there is one."""
    sure: Literal["certain", "likely", "possible"] = "likely"
    """certain: the records prove it. likely: nearly all such alerts on labelled curves were right.
    possible: healthy runs can look like this too."""
    cause: str = ""
    """The usual cause."""
    source: str = ""
    """Where the criterion comes from; empty if it is a definition."""
