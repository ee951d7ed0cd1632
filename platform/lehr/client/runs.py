"""``Run``: one run of a server, with its data and actions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from lehr.client import checkpoints, model_export
from lehr.client.capsules import with_current_code
from lehr.client.files import save
from lehr.client.frames import import_pandas, need_plotly, series_frame, system_frame
from lehr.client.progress import run_progress
from lehr.client.waiting import Wait, until_ended
from lehr.errors import NotFound
from lehr.schemas.alerts import AlertView
from lehr.schemas.checkpoints import CheckpointDeletion, CheckpointVerdict, CheckpointView
from lehr.schemas.runs import Deletion, Latest, RunDetail, RunView
from lehr.schemas.streams import (
    EventView,
    LogChunk,
    LogHit,
    LogHits,
    LogStream,
    MetricInfo,
    SampleView,
    Series,
)
from lehr.schemas.sweeps import SweepDetail
from lehr.schemas.system import RunSystem

if TYPE_CHECKING:
    import pandas as pd

    from lehr.client.sweeps import Sweep
    from lehr.client.transport import Transport
    from lehr.specs import RunSpec
    from lehr_trainer.configs.train import TrainConfig

V = TypeVar("V", bound=BaseModel)
ENDED = frozenset({"completed", "failed", "cancelled", "pruned"})
_LOG_PIECE = 1 << 18
_FOLLOW_PAUSE_S = 0.5


class Run:
    """A run as last read; ``refresh()`` reads it again."""

    def __init__(self, transport: Transport, view: RunView) -> None:
        self._transport = transport
        self.view = view

    # --- properties ------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state

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
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        return self.view.note

    @property
    def latest(self) -> dict[str, Latest]:
        return self.view.latest

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        return f"{self._transport.server}/runs/{self.id}"

    @property
    def detail(self) -> RunDetail:
        """Return the view with spec, provenance and attempts."""
        if not isinstance(self.view, RunDetail):
            self.refresh()
        assert isinstance(self.view, RunDetail)
        return self.view

    @cached_property
    def spec(self) -> RunSpec:
        from lehr.specs import RunSpec

        return RunSpec.model_validate(self.detail.spec)

    @property
    def config(self) -> TrainConfig:
        """Return the trainer's config, e.g. ``run.config.optimizer.lr``."""
        return self.spec.own

    def refresh(self) -> Self:
        self.view = RunDetail.model_validate_json(self._transport.get(f"/runs/{self.id}"))
        return self

    def __repr__(self) -> str:
        step = f", step {self.view.step:,}" if self.view.step is not None else ""
        return f"<Run {self.id} {self.name}: {self.state}{step} of {self.view.total_steps:,}>"

    def _repr_html_(self) -> str:
        from lehr.notebook import run_html

        return run_html(self.view, self.url)

    # --- actions -----------------------------------------------------------------------------

    def cancel(self) -> Self:
        """Stop it without saving."""
        return self._act("cancel")

    def pause(self) -> Self:
        """Save a checkpoint, stop, and free the GPUs; ``resume`` continues from there."""
        return self._act("pause")

    def resume(self) -> Self:
        return self._act("resume")

    def retry(self) -> Self:
        """Queue a failed run again, from its last checkpoint."""
        return self._act("retry")

    def checkpoint(self) -> Self:
        """Save a checkpoint at the next step."""
        return self._act("checkpoint")

    def archive(self) -> Self:
        """Hide it from lists, once it has ended. Nothing is deleted."""
        return self._act("archive")

    def unarchive(self) -> Self:
        return self._act("unarchive")

    def tag(self, *tags: str) -> Self:
        """Add tags and keep the existing ones."""
        return self._change_tags(add=tags)

    def untag(self, *tags: str) -> Self:
        """Remove tags; a missing tag is no error."""
        return self._change_tags(remove=tags)

    def _change_tags(self, **change: Sequence[str]) -> Self:
        body = {name: list(tags) for name, tags in change.items()}
        answer = self._transport.post(f"/runs/{self.id}/tags", body)
        self.view = RunDetail.model_validate_json(answer)
        return self

    def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it."""
        answer = self._transport.put(f"/runs/{self.id}/note", {"note": note})
        self.view = RunDetail.model_validate_json(answer)
        return self

    def deletion(self) -> Deletion:
        """Return what ``delete`` would free."""
        return Deletion.model_validate_json(self._transport.get(f"/runs/{self.id}/deletion"))

    def delete(self) -> Deletion:
        """Delete its checkpoints, metrics, logs and files, for good. Its record stays, archived."""
        return Deletion.model_validate_json(self._transport.delete(f"/runs/{self.id}"))

    def fork(
        self,
        step: int | None = None,
        changes: Mapping[str, Any] | Sequence[str] = (),
        *,
        code: Literal["same", "current"] = "same",
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a new run from a checkpoint of this one, with changes.

        ::

            run.fork(step=15_000, changes={"train.optimizer.lr": 1.5e-4})

        Args:
            step: step of the checkpoint. Default: the newest.
            changes: values by dotted path. A new warmup begins at the checkpoint.
            code: same: train with the code of this run; current: with the code as it is here now.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            SpecError: a change is wrong, or would need other weights than the checkpoint's.
        """
        from lehr.client.provenance import provenance

        given = dict(changes) if isinstance(changes, Mapping) else list(changes)
        if code == "current":
            given = with_current_code(self._transport, self.detail.spec, given)
        body = {
            "step": step,
            "changes": given,
            "provenance": provenance(None),
        }
        key = idempotency_key or uuid.uuid4().hex
        answer = self._transport.post(f"/runs/{self.id}/fork", body, idempotency_key=key)
        return Run(self._transport, RunDetail.model_validate_json(answer))

    def seeds(
        self,
        n: int = 3,
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Repeat it ``n`` times with seeds that it does not have yet, as a sweep over the seed.

        Once they have ended, ``client.compare`` of this run, the sweep's runs and other runs judges
        differences by the noise between seeds.

        Args:
            n: number of runs to add, 1 to 20.
            provenance: where the request comes from. Default: commit, host and command.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            UserError: ``n`` is out of its range.
            Conflict: it was deleted or archived, or it is a fork.
        """
        from lehr.client.provenance import provenance as gathered
        from lehr.client.sweeps import Sweep

        body = {"n": n, "provenance": dict(provenance or gathered(None))}
        key = idempotency_key or uuid.uuid4().hex
        answer = self._transport.post(f"/runs/{self.id}/seeds", body, idempotency_key=key)
        return Sweep(self._transport, SweepDetail.model_validate_json(answer))

    def mirror(
        self,
        mode: Literal["online", "offline", "off"] = "online",
        *,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] = (),
    ) -> Self:
        """Mirror it to Weights & Biases, from its first event. The server does it.

        Progress: ``run.refresh().detail.wandb``. The arguments are those of a spec's
        ``tracking.wandb``. Repeating it starts over with new arguments.

        Raises:
            UserError: the server lacks the package wandb, or a key for ``online``.
        """
        body = {"mode": mode, "project": project, "entity": entity, "group": group}
        answer = self._transport.post(
            f"/runs/{self.id}/wandb", {**body, "job_type": job_type, "tags": list(tags)}
        )
        self.view = RunDetail.model_validate_json(answer)
        return self

    def _act(self, verb: str) -> Self:
        self.view = RunDetail.model_validate_json(self._transport.post(f"/runs/{self.id}/{verb}"))
        return self

    def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[RunView], None] | None = None,
    ) -> Self:
        """Wait until it has ended. Interrupting only stops the waiting, never the run.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        waiting = Wait(f"run {self.name} ({self.id})", timeout_s, self._transport.sleep)
        shown = nullcontext(progress) if progress else run_progress(self.name, self.url)
        until_ended(self, waiting, shown, lambda: self.view)
        return self

    # --- data --------------------------------------------------------------------------------

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
        selected = list(names) or [metric.name for metric in self.metrics()]
        params = {
            "name": selected,
            "x": x,
            "points": points,
            "exact": exact,
            "smoothing": smoothing,
            "superseded": superseded,
        }
        return self._list("/series", Series, params) if selected else []

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
    ) -> Any:
        """Plot the named metrics with Plotly; by default the losses.

        Metrics with the same last part (``train/loss``, ``val/loss``) share a panel.

        Raises:
            NotFound: the run has no metric of that name, or none at all yet.
        """
        need_plotly("plot()")
        from lehr.analysis.figures import run_figure

        selected = names or self._losses()
        return run_figure(self.name, self.series(*selected, x=x, points=1000, smoothing=smoothing))

    def _losses(self) -> list[str]:
        known = [metric.name for metric in self.metrics()]
        if not known:
            raise NotFound(f"run {self.name} has not logged any metric yet.")
        return [name for name in known if name in {"train/loss", "val/loss"}] or known[:1]

    def export(self, form: Literal["jsonl", "parquet"] = "jsonl") -> bytes:
        """Return every point of every metric as the bytes of a file: one row per step, one
        column per metric.
        """
        return self._transport.get(f"/runs/{self.id}/export", {"format": form})

    def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has result, curves, cost, checkpoints, config and provenance.

        Raises:
            UserError: the file cannot be written.
        """
        return save(self._transport.get(f"/runs/{self.id}/report"), path)

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
        """Return lines of a log, by default rank 0 of the newest attempt.

        Args:
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt.
            Default: the newest.
            tail: return only the last lines, this many.
            follow: continue with new lines, through later attempts, until the run has ended.
            offset: begin at this byte instead, as returned by ``search_logs``.
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
        """Return lines of a log that contain ``text``, ignoring case; by default of rank 0.

        Args:
            text: text that a line must contain.
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt.
            Default: the newest that wrote this log.
            offset: search from this byte.
        """
        at: int | None = offset
        while at is not None:
            params = {"text": text, "attempt": attempt, "offset": at}
            answer = self._transport.get(f"/runs/{self.id}/logs/{quote(name)}/search", params)
            found = LogHits.model_validate_json(answer)
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
                self._transport.sleep(_FOLLOW_PAUSE_S)
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
            self._transport.sleep(_FOLLOW_PAUSE_S)

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
            self._transport.sleep(_FOLLOW_PAUSE_S)

    def _chunk(self, name: str, **params: Any) -> LogChunk:
        return LogChunk.model_validate_json(
            self._transport.get(f"/runs/{self.id}/logs/{name}", params)
        )

    def system(self, *, attempt: int | None = None, points: int = 400) -> RunSystem:
        """Return what its nodes and GPUs did while its attempts ran.

        Args:
            attempt: number of the attempt. Default: all of them.
            points: of each node, neighbours are averaged until there are at most so many.

        Raises:
            NotFound: it has no such attempt.
        """
        params = {"attempt": attempt, "points": points}
        return RunSystem.model_validate_json(self._transport.get(f"/runs/{self.id}/system", params))

    def system_frame(self, *, attempt: int | None = None) -> pd.DataFrame:
        """Return ``system`` as a pandas frame: one row per attempt, node and time."""
        import_pandas("system_frame()")
        found = self.system(attempt=attempt)
        return system_frame(
            [node for one in found.attempts for node in one.nodes],
            attempts=[one.number for one in found.attempts for _ in one.nodes],
        )

    def events(self) -> list[EventView]:
        return self._list("/events", EventView)

    def alerts(self) -> list[AlertView]:
        """Return what the diagnosis of the run's curves has found so far."""
        return self._list("/alerts", AlertView)

    def samples(self) -> list[SampleView]:
        return self._list("/samples", SampleView)

    # --- checkpoints -------------------------------------------------------------------------

    def checkpoints(self) -> list[CheckpointView]:
        """Return its checkpoints by step; deleted ones stay listed, with ``removed_at``."""
        return self._list("/checkpoints", CheckpointView)

    def verify_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointVerdict:
        """Have the server read a checkpoint completely, in every location, and check its
        digests.
        """
        return checkpoints.verify(self._transport, self.id, step, attempt)

    def download_checkpoint(
        self,
        step: int,
        folder: Path | str,
        *,
        attempt: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Download a checkpoint into a new folder and check every digest.

        Args:
            step: step of the checkpoint.
            folder: folder for its files.
            attempt: number of the attempt.
            Default: the newest that saved at this step.
            progress: called with the bytes so far, and the total.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            Conflict: the folder exists, or no location of the checkpoint can be read.
        """
        target = Path(folder)
        checkpoints.download(
            self._transport, self.id, step, target, attempt=attempt, progress=progress
        )
        return target

    def export_model(
        self,
        folder: Path | str,
        step: int | Literal["best", "last"] = "last",
        *,
        attempt: int | None = None,
        tokenizer: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write the model of a checkpoint to a folder that ``transformers`` loads.

        The folder gets weights, config, tokenizer and a model card with the run's provenance. It
        appears once it is complete. The weights are downloaded from the run's directory or its
        copy, and converted on this machine, which needs ``lehr[trainer]``.

        Args:
            folder: folder to make.
            step: step of the checkpoint; ``best`` has the lowest val/loss.
            attempt: number of the attempt.
            Default: the newest that saved at this step.
            tokenizer: where the run's tokenizer is on this machine, if not where the run found it;
                ``none`` leaves it out.
            overwrite: replace an earlier export.
            progress: called with the bytes downloaded so far, and the total.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the folder is not empty, or no location of the checkpoint can be read.
            UserError: the model or its tokenizer cannot be exported.
        """
        return model_export.export_model(
            self._transport,
            self.detail,
            self.checkpoints(),
            Path(folder),
            step,
            attempt=attempt,
            tokenizer=tokenizer,
            overwrite=overwrite,
            progress=progress,
        )

    def checkpoint_deletion(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Return what ``delete_checkpoint`` would free."""
        return checkpoints.deletion(self._transport, self.id, step, attempt)

    def delete_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Delete one checkpoint and its copy, unless a run still needs it."""
        return checkpoints.delete(self._transport, self.id, step, attempt)

    def _list(self, path: str, kind: type[V], params: dict[str, Any] | None = None) -> list[V]:
        answer = self._transport.get(f"/runs/{self.id}{path}", params)
        found: list[V] = TypeAdapter(list[kind]).validate_json(answer)  # type: ignore[valid-type]
        return found
