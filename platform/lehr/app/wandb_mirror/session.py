"""Keep one W&B run equal to one of Lehr's. Imports wandb, so only the child process uses it.

Every row is written exactly once, in two ways. *Online*, W&B reports how many rows of history it
has (the ``starting_step`` of a resumed run; ``step`` is 0 there in wandb 0.31). The sequence of
rows is always the same (``records``; the place of scores is noted before they are sent), so the
mirror continues with the next one. *Offline*, files
cannot be continued: an unfinished file is dropped and written again from the replica. So a kill at
any moment loses and duplicates nothing.

When a run resumes from a checkpoint, later steps are trained again. Offline files are then written
again with the rows that count. W&B's server removes no row, so online both stay, distinguished by
``attempt``. Rows that are already superseded when a mirror begins are never sent.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb
from pydantic import ValidationError

from lehr.app.wandb_mirror.state_files import (
    AttemptFeed,
    MirrorProgress,
    MirrorRequest,
    Notes,
    RunFeed,
    SentScores,
)
from lehr.base import home as homes
from lehr.schemas.checkpoints import CheckpointView
from lehr.store.streams.replica import SCORES
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import Evaluation, Metrics, Sample, Warning_, record_adapter

STEP = "step"  # The x axis of the rows: optimizer steps. W&B's own ``_step`` counts rows.
_LOOK_S = 1.0
_TAG_LIMIT = 64
_SAMPLE_COLUMNS = ["step", "attempt", "prompt", "text"]
_QUIET: dict[str, Any] = {
    # wandb must not record this process's output, code or system metrics: it is not the training.
    "console": "off",
    "silent": True,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "reinit": "create_new",
}


class _Superseded(Exception):
    """Rows were written that no longer count."""


def mirror(home: Path, run_id: str, feed: Callable[[], RunFeed], stop: threading.Event) -> None:
    """Mirror a run until it has ended or is paused, its request has changed, or ``stop`` is set.

    ``feed`` returns the server's newest message about the run. After ``stop``, which ends this
    process, an open W&B run is finished as it is.

    Raises:
        wandb.Error: W&B rejected a request, or could not be reached at the start.
    """
    notes = Notes(home, run_id)
    while True:
        request = notes.request()
        known = notes.progress()
        if request is None or request.settings.mode == "off":
            if notes.forgotten:
                notes.forget()  # Closing the W&B run can have written files.
            return
        now = feed()
        closed = known is not None and known.state == "done" and known.run_state == now.state
        if closed and known is not None and known.scored == now.scored:
            return
        try:
            _Session(homes.replica_dir(home), notes, request, feed, stop).keep()
        except _Superseded:
            continue
        if stop.is_set() or notes.request() == request:
            return


@dataclass(eq=False, repr=False)
class _Session:
    """One opening of the W&B run."""

    replica: Path
    notes: Notes
    request: MirrorRequest
    feed: Callable[[], RunFeed]
    stop: threading.Event

    def __post_init__(self) -> None:
        self._offline = self.request.settings.mode == "offline"
        self._samples: list[list[Any]] = []
        self._written: dict[int, int] = {}  # By attempt, its last step that was sent to W&B.
        self._offsets: dict[int, int] = {}  # Bytes of each attempt's events that are processed.
        self._scores_sent = 0  # How many of ``progress.scores`` are sent.
        self._rows_at_start = 0  # Rows that W&B had at the start.
        self._began_late = False
        """Whether the run had ended when mirroring began: then no alerts are sent."""

    def keep(self) -> None:
        feed = self.feed()
        self.progress = self._beginning(feed)
        self._began_late = feed.resting
        self._run = self._open(feed)
        self._rows_at_start = 0 if self._offline else int(self._run.starting_step)
        self.progress.url = None if self._offline else self._run.url
        self.progress.folder = str(self._run.settings.sync_dir) if self._offline else None
        try:
            done = self._follow()
        except Exception:
            self._run.finish()
            raise
        if not done:
            self.notes.write(self.progress)
            self._run.finish()

    def _beginning(self, feed: RunFeed) -> MirrorProgress:
        """Return the progress to begin with. Online, it has the limits and ends of the earlier one:
        they decided which rows W&B has.
        """
        known = None if self._offline else self.notes.progress()
        return MirrorProgress(
            request_at=self.request.at,
            state="mirroring",
            limits=_limits(feed) if known is None else known.limits,
            ends={} if known is None else known.ends,
            scores=[] if known is None else known.scores,
        )

    def _open(self, feed: RunFeed) -> Any:
        request = self.request.settings
        folder = self.notes.folder / "files"
        if self._offline:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = wandb.Settings.model_fields
        tags = dict.fromkeys(tag[:_TAG_LIMIT] for tag in [*feed.tags, *request.tags] if tag)
        run = wandb.init(
            id=feed.run_id,
            name=feed.name,
            project=request.project or feed.project,
            entity=request.entity,
            group=request.group or feed.sweep,
            job_type=request.job_type,
            tags=list(tags),
            notes=feed.notes or None,
            config=feed.config,
            dir=str(folder),
            mode="offline" if self._offline else "online",
            resume=None if self._offline else "allow",
            settings=wandb.Settings(**{k: v for k, v in _QUIET.items() if k in known}),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        self.notes.write(self.progress)
        return run

    def _follow(self) -> bool:
        """Send new rows. Return whether the W&B run was closed because Lehr's run has ended or
        is paused.
        """
        while True:
            feed = self.feed()
            self._catch_up(feed)
            if self.stop.is_set() or self.notes.request() != self.request:
                return False
            if feed.resting and feed.closing is not None:
                self._close(feed)
                return True
            self.notes.write(self.progress)
            self.stop.wait(_LOOK_S)

    def _catch_up(self, feed: RunFeed) -> None:
        if self._offline:
            self.progress.limits = _limits(feed)
            for number, step in self._written.items():
                if step > self.progress.limits.get(number, step):
                    raise _Superseded
        self._read_all(feed)
        for number, size in feed.scored.items():
            if self.stop.is_set() or (start := self.progress.scored.get(number, 0)) >= size:
                continue
            self._send_scores()
            rows = self.progress.rows
            sent = SentScores(attempt=number, start=start, end=size, after=rows)
            self.progress.scores.append(sent)
            self.notes.write(self.progress)  # First: W&B never removes a row.
        self._send_scores()

    def _send_scores(self) -> None:
        """Send the scores whose place has come."""
        for sent in self.progress.scores[self._scores_sent :]:
            if sent.after > self.progress.rows:
                return
            self._scores_sent += 1
            path = self.replica / f"{self.notes.run_id}-{sent.attempt}" / SCORES
            for _, record in records(path, sent.start, sent.end):
                self._pass_on(sent.attempt, record)

    def _read_all(self, feed: RunFeed) -> None:
        for place, attempt in enumerate(feed.attempts):
            self._read(attempt)
            later = any(other.size for other in feed.attempts[place + 1 :])
            if attempt.open and not later:
                return
            if not self.stop.is_set():
                self.progress.ends.setdefault(attempt.number, self._offsets.get(attempt.number, 0))

    def _read(self, attempt: AttemptFeed) -> None:
        path = self.replica / f"{self.notes.run_id}-{attempt.number}" / EVENTS
        end = self.progress.ends.get(attempt.number, attempt.size)
        for offset, record in records(path, self._offsets.get(attempt.number, 0), end):
            if self.stop.is_set():
                return
            self._send_scores()
            self._pass_on(attempt.number, record)
            self._offsets[attempt.number] = offset

    def _pass_on(self, attempt: int, record: object) -> None:
        """Send what W&B gets of a record; nothing of one that a resume has superseded."""
        if not isinstance(record, Metrics | Evaluation | Sample | Warning_):
            return
        if (record.step or 0) > self.progress.limits.get(attempt, sys.maxsize):
            return
        if isinstance(record, Sample):
            self._samples.append([record.step, attempt, record.prompt, record.text])
        elif isinstance(record, Warning_):
            if self.progress.rows >= self._rows_at_start and not self._began_late:
                self._run.alert(title=record.code, text=record.message, level="WARN")
        else:
            self.progress.rows += 1
            self._written[attempt] = max(record.step, self._written.get(attempt, 0))
            if self.progress.rows > self._rows_at_start:
                row = {"tokens": record.tokens, "attempt": attempt, "_timestamp": record.time}
                self._run.log({STEP: record.step, **row, **record.values})

    def _close(self, feed: RunFeed) -> None:
        closing = feed.closing
        assert closing is not None
        if self._samples:
            # In the summary, not in the history, so that the rows keep their numbers.
            self._run.summary["samples"] = wandb.Table(columns=_SAMPLE_COLUMNS, data=self._samples)
        self._run.summary.update(closing.summary)
        for saved in closing.checkpoints:
            self._refer(feed, saved, closing.run_directory)
        self._run.finish(exit_code=closing.exit_code)
        self.progress.state, self.progress.run_state = "done", feed.state
        self.notes.write(self.progress)

    def _refer(self, feed: RunFeed, saved: CheckpointView, run_directory: str) -> None:
        """Refer to a checkpoint as an artifact; its files are not uploaded."""
        made = wandb.Artifact(
            f"checkpoint-{feed.run_id}", type="model", metadata=saved.model_dump(mode="json")
        )
        folder = Path(run_directory) / saved.path
        # W&B accepts file:// references only to files that exist here, not on the disk of a node.
        uri = folder.as_uri() if folder.is_dir() else f"lehr://{feed.run_id}/{saved.path}"
        made.add_reference(uri, name=saved.path, checksum=False)
        marks = [word for word, is_it in (("best", saved.best), ("latest", saved.latest)) if is_it]
        self._run.log_artifact(made, aliases=[f"step-{saved.step}", *marks])


def _limits(feed: RunFeed) -> dict[int, int]:
    """Return the last step of each attempt that counts; -1 if it is superseded completely."""
    newest = max(feed.spans, default=0)
    return {
        attempt.number: feed.spans.get(attempt.number, -1)
        for attempt in feed.attempts
        if attempt.number <= newest
    }


def records(path: Path, start: int, end: int) -> Iterator[tuple[int, object]]:
    """Yield the record of each complete line from byte ``start`` to byte ``end``, with the offset
    of the next line; None for an invalid line.

    W&B numbers rows as they arrive and never removes one, so the sequence of a run's rows must
    always be the same: attempts in order, each in the order of its stream.
    """
    if start >= end:
        return
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (line := file.readline()).endswith(b"\n"):
            start += len(line)
            record = None
            with contextlib.suppress(ValidationError):
                record = record_adapter.validate_json(line)
            yield start, record
