"""Alerts of a run: what the diagnosis of its curves found."""

from __future__ import annotations

from typing import Literal

from pydantic import computed_field

from lehr.schemas.base import View
from lehr.specs.gates import AlertCode

_SURE = {
    "certain": "certain: the records prove it",
    "likely": "likely: nearly all such alerts on labelled curves were right",
    "possible": "possible: healthy runs can look like this too",
}


class AlertLine(View):
    name: str
    """seen, sure, cause, try or source."""
    text: str


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

    @computed_field  # type: ignore[prop-decorator]
    @property
    def message(self) -> str:
        """Its text among a run's ``alerts``."""
        return f"{self.seen}. {self.advice}"

    @property
    def title(self) -> str:
        return f"{self.code}, since step {self.step:,}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def explanation(self) -> list[AlertLine]:
        """What the command line, the run's page and reports show of it below its name."""
        lines = {
            "seen": self.seen,
            "sure": _SURE[self.sure],
            "cause": self.cause,
            "try": self.advice,
            "source": self.source,
        }
        return [AlertLine(name=name, text=text) for name, text in lines.items() if text]


def unexplained(texts: list[str], explained: list[AlertView]) -> list[str]:
    """Return the alerts of a run that are not among its explained ones: its trainer's warnings."""
    known = {alert.message for alert in explained}
    return [text for text in texts if text not in known]
