"""What a run is and has recorded: its view, metrics and logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from lehr.base import formats
from lehr.errors import NotFound
from lehr.faces.client.notebook import Drawing, import_pandas, series_frame
from lehr.faces.client.server_object import ObjectMethods
from lehr.schemas.runs import Latest, RunDetail, RunView
from lehr.schemas.streams import (
    AlertView,
    EventView,
    LogChunk,
    LogHit,
    LogHits,
    LogStream,
    MediaView,
    MetricInfo,
    SampleView,
    Series,
)
from lehr.specs import RunSpec

if TYPE_CHECKING:
    import pandas as pd

    from lehr.specs import RunSpec
    from lehr_trainer.configs.train import TrainConfig


V = TypeVar("V", bound=BaseModel)
ENDED = frozenset({"completed", "failed", "cancelled", "pruned"})
_NAMES_A_PART = 50
_POINTS_A_PART = 1_000_000
"""Half of what the server allows, since a run that trains has more by the time it answers."""
_LOG_PIECE = 1 << 18
_FOLLOW_PAUSE_S = 0.5


class RunData(ObjectMethods[RunView, RunDetail]):
    """A part of ``lehr.faces.client.runs.Run``: what is read of it."""

    _detail_type = RunDetail

    @property
    def ended(self) -> bool:
        return self.view.state in ENDED

    @property
    def step(self) -> int | None:
        """Return the optimizer steps done, as last reported."""
        return self.view.step

    @property
    def attempt(self) -> int:
        """Return the number of its newest attempt; 0 before the first."""
        return self.view.attempt

    @property
    def reason(self) -> str | None:
        """Return why it is in its state, or why it waits."""
        return self.view.reason or self.view.pending_reason

    @property
    def tags(self) -> list[str]:
        return self.view.tags

    @property
    def latest(self) -> dict[str, Latest]:
        return self.view.latest

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate(self.detail.spec)

    @property
    def config(self) -> TrainConfig:
        """Return the trainer's config, e.g. ``run.config.optimizer.lr``."""
        return self.spec.own

    def __repr__(self) -> str:
        view = self.view
        parts = [f"{self.state}: {self.reason}" if self.reason else self.state]
        parts += [formats.steps(view.step, view.total_steps)] if view.step is not None else []
        parts += [
            f"{name} {formats.loss(latest.value)}"
            for name, latest in view.latest.items()
            if name in {"train/loss", "val/loss"}
        ]
        return f"<Run {self.id} {self.name}: {', '.join(parts)}>"

    def _repr_html_(self) -> str | None:
        from lehr.faces.client.notebook import run_html

        return run_html(self.view, self.url)

    def _list(self, path: str, kind: type[V], params: dict[str, Any] | None = None) -> list[V]:
        answer = self._transport.get(f"/runs/{self.id}{path}", params)
        found: list[V] = TypeAdapter(list[kind]).validate_json(answer)  # type: ignore[valid-type]
        return found

    def metrics(self) -> list[MetricInfo]:
        return self._list("/metrics", MetricInfo)

    def series(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        points: int = 500,
        exact: bool = False,
        smoothing: float | None = None,
        superseded: bool = False,
    ) -> list[Series]:
        """Return curves, downsampled by the server unless ``exact``; all metrics when none is
        named.
        """
        options = {
            "x": x,
            "points": points,
            "exact": exact,
            "smoothing": smoothing,
            "superseded": superseded,
        }
        return [
            one
            for part in self._parts(names, exact=exact, points=points)
            for one in self._list("/series", Series, {"name": part, **options})
        ]

    def _parts(self, names: Sequence[str], *, exact: bool, points: int) -> Iterator[list[str]]:
        """Split the metrics (default: all) into what one answer may have."""
        if len(names) == 1:
            yield [*names]
            return
        known = {}
        if exact or not names:
            known = {metric.name: metric.points for metric in self.metrics()}
        part: list[str] = []
        total = 0
        for name in dict.fromkeys(names or known):
            count = known.get(name, 0) if exact else points
            if part and (len(part) == _NAMES_A_PART or total + count > _POINTS_A_PART):
                yield part
                part, total = [], 0
            part.append(name)
            total += count
        if part:
            yield part

    def history(self, *names: str) -> pd.DataFrame:
        """Return every point of the named metrics (default: all), one row per step.

        Exact, and the same on every call once the run has ended.

        Raises:
            NotFound: the run has no metric of that name.
        """
        import_pandas("history()")
        return series_frame(self.series(*names, exact=True))

    def plot(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        smoothing: float | None = None,
    ) -> Drawing:
        """Plot the named metrics; by default the losses.

        Metrics with the same last part (``train/loss``, ``val/loss``) share a panel.

        Raises:
            NotFound: the run has no metric of that name, or none at all yet.
        """
        from lehr.analysis.figure import run_figures
        from lehr.analysis.figure_svg import draw

        selected = names or self._losses()
        series = self.series(*selected, x=x, points=1000, smoothing=smoothing)
        figures = run_figures(series, self.detail.stages)
        return Drawing([draw(figure, figure.y.title) for figure in figures], self.name)

    def _losses(self) -> list[str]:
        known = [metric.name for metric in self.metrics()]
        if not known:
            raise NotFound(f"run {self.name} has not logged any metric yet.")
        return [name for name in known if name in {"train/loss", "val/loss"}] or known[:1]

    def export(self, form: Literal["jsonl", "csv", "parquet"] = "jsonl") -> bytes:
        """Return every point of every metric as the bytes of a file: one row per step, one
        column per metric.
        """
        return self._transport.get(f"/runs/{self.id}/export", {"format": form})

    def events(self) -> list[EventView]:
        return self._list("/events", EventView)

    def alerts(self) -> list[AlertView]:
        """Return what the diagnosis of the run's curves has found so far."""
        return self._list("/alerts", AlertView)

    def samples(self) -> list[SampleView]:
        return self._list("/samples", SampleView)

    def media(self) -> list[MediaView]:
        """Return images, tables, histograms and files that the program has logged, oldest first."""
        return self._list("/media", MediaView)

    def media_content(self, item: MediaView) -> bytes:
        """Return the bytes of one of them. Those of a table or histogram are JSON."""
        which = {"offset": item.offset, "size": item.size}
        return self._transport.get(f"/runs/{self.id}/media/{item.attempt}", which)

    def log_streams(self) -> list[LogStream]:
        return self._list("/logs", LogStream)

    def logs(
        self,
        name: str = "rank-0.log",
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        offset: int | None = None,
    ) -> Iterator[str]:
        """Return lines of a log, by default rank 0 of the newest attempt; ``log_streams()`` lists
        all.

        ``tail``: only so many last lines. ``follow``: continue with new lines, through later
        attempts, until the run has ended. ``offset``: begin at this byte, as returned by
        ``search_logs``.
        """
        if attempt is None:
            attempt = self._newest_attempt(name, wait=follow)
            moving = follow
        else:
            moving = False
        while attempt is not None:
            begin = {"tail": tail, "offset": offset}
            yield from self._attempt_lines(name, attempt, begin=begin, follow=follow)
            tail = offset = None
            attempt = self._later_attempt(name, attempt) if moving else None

    def search_logs(
        self, text: str, name: str = "rank-0.log", *, attempt: int | None = None, offset: int = 0
    ) -> Iterator[LogHit]:
        """Return lines of a log that contain ``text``, ignoring case; by default of rank 0, in the
        newest attempt that wrote this log, from byte ``offset`` on.
        """
        at: int | None = offset
        while at is not None:
            params = {"text": text, "attempt": attempt, "offset": at}
            path = f"/runs/{self.id}/logs/{quote(name)}/search"
            found = self._transport.read(LogHits, path, params)
            yield from found.lines
            at = found.next_offset

    def _attempt_lines(
        self, name: str, attempt: int, *, begin: Mapping[str, int | None], follow: bool
    ) -> Iterator[str]:
        chunk = self._chunk(name, attempt=attempt, limit=_LOG_PIECE, **begin)
        rest = ""
        while True:
            *lines, rest = (rest + chunk.text).split("\n")
            yield from lines
            if chunk.next_offset >= chunk.size_bytes:
                if not follow or chunk.ended:
                    break
                time.sleep(_FOLLOW_PAUSE_S)
            chunk = self._chunk(name, attempt=attempt, offset=chunk.next_offset, limit=_LOG_PIECE)
        if rest:
            yield rest

    def _newest_attempt(self, name: str, *, wait: bool) -> int | None:
        while True:
            numbers = [log.attempt for log in self.log_streams() if log.name == name]
            if numbers:
                return max(numbers)
            self.refresh()
            if not wait or self.ended:
                known = sorted({log.name for log in self.log_streams()})
                if not known and self.view.attempt == 0:
                    return None  # It never started: there is nothing to read, which is no error.
                hint = f"It has: {', '.join(known)}" if known else "It has written none yet."
                raise NotFound(f"run {self.name} has no log {name!r}.", hint=hint)
            time.sleep(_FOLLOW_PAUSE_S)

    def _later_attempt(self, name: str, attempt: int) -> int | None:
        """Return the next attempt that wrote this log; None once the run has ended without one."""
        while True:
            later = [
                log.attempt
                for log in self.log_streams()
                if log.name == name and log.attempt > attempt
            ]
            if later:
                return min(later)
            if self.refresh().ended or self.state == "paused":
                return None
            time.sleep(_FOLLOW_PAUSE_S)

    def _chunk(self, name: str, **params: Any) -> LogChunk:
        return self._transport.read(LogChunk, f"/runs/{self.id}/logs/{name}", params)
