"""Data of runs: metrics, logs, events, samples."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import computed_field

from lehr.base.names import Goal
from lehr.schemas.base import Measured, View
from lehr.specs.gates import AlertCode


class MetricInfo(View):
    name: str
    goal: Goal | None = None
    """Whether lower or higher values are better; null where the name does not show it."""
    points: int
    last: Measured
    last_step: int
    minimum: Measured | None = None
    maximum: Measured | None = None


class MetricsOfRun(View):
    run_id: str
    metrics: list[MetricInfo]


class Series(View):
    """One metric of one run, reduced to at most ``points`` buckets unless ``exact``.

    ``x`` is by ``x_axis``: step, tokens, FLOPs, or seconds since the run's first point. In a
    reduced series each bucket has its last point in ``x``/``y`` and its range in ``low``/``high``,
    values to seven digits.
    """

    run_id: str
    name: str
    goal: Goal | None = None
    """As of ``MetricInfo``."""
    speed: bool = False
    """Whether it measures a machine and no model: a slow run is in each mean."""
    x_axis: Literal["step", "tokens", "time", "flops"] = "step"
    exact: bool
    total_points: int
    step: list[int]
    x: list[Measured]
    y: list[Measured]
    low: list[Measured] | None = None
    high: list[Measured] | None = None
    nonfinite: list[int] = []
    """Steps whose value is NaN or infinite (the first 1,000), also where a bucket hides them."""
    superseded: list[Series] = []
    """Points of earlier attempts past the step where a later one resumed, if requested."""
    members: int = 1
    """Of more than one run it is the mean where half of them have a value, with one standard
    deviation below and above it in ``low`` and ``high``, and without ``superseded``.
    """
    counts: list[int] | None = None
    """How many of the members have a value at each point, where not all have one at all."""
    dropouts: str = ""
    """Which members have none at the last steps of the others: `2 diverged at steps 60 to 61`."""
    far: list[str] = []
    """Runs that are left out, as `RunValuesView` has it; ``dropouts`` names them."""


class LogStream(View):
    name: str
    attempt: int
    size_bytes: int
    cut: bool = False


class LogChunk(View):
    name: str
    attempt: int
    offset: int
    next_offset: int
    size_bytes: int
    text: str
    ended: bool
    """No more will come: the attempt is closed."""


class LogHit(View):
    """A line of a log that contains the searched text."""

    offset: int
    """Byte offset of the line: read on from there."""
    text: str


class LogHits(View):
    name: str
    attempt: int
    lines: list[LogHit]
    next_offset: int | None = None
    """Offset to continue the search; null once the log was searched to its end."""


class EventView(View):
    """A transition, a request or a record of the trainer, in order of time."""

    at: float
    kind: str
    """transition, request, started, resumed, checkpoint, checkpoint_removed, evaluation, warning,
    notice, stopping, finished."""
    message: str
    attempt: int
    step: int | None = None
    data: dict[str, Any] = {}


class SampleView(View):
    step: int
    attempt: int
    prompt: str
    text: str
    at: float


class MediaView(View):
    """An image, table, histogram or file that a program has logged."""

    name: str
    step: int
    attempt: int
    type: Literal["image", "table", "histogram", "file"]
    caption: str
    """The name of a file."""
    offset: int
    """Where its content begins among that of its attempt, in bytes."""
    size: int
    at: float


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
