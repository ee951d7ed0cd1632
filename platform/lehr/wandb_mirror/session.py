"""Keep one W&B run equal to one of Lehr's. Imports wandb, so only the child process uses it.

Every row is written exactly once, in two ways. *Online*, W&B reports how many rows of history it
has (the ``starting_step`` of a resumed run; ``step`` is 0 there in wandb 0.31). The sequence of
rows is always the same (``rows``), so the mirror continues with the next one. *Offline*, files
cannot be continued: an unfinished file is dropped and written again from the replica. So a kill at
any moment loses and duplicates nothing.

When a run resumes from a checkpoint, later steps are trained again. Offline files are then written
again with the rows that count. W&B's server removes no row, so online both stay, distinguished by
``attempt``. Rows that are already superseded when a mirror begins are never sent.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from lehr import home as homes
from lehr.wandb_mirror import rows
from lehr.wandb_mirror.state_files import MirrorProgress, MirrorRequest, Notes
from lehr_trainer.contract.records import Sample

if TYPE_CHECKING:
    from lehr.wandb_mirror.state_files import AttemptFeed, CheckpointFeed, RunFeed

_LOOK_S = 1.0
_NOTE_EVERY = 500
"""Number of rows between two writes of the progress."""
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


class MirrorSession:
    """Mirror one run until it has ended or is paused.

    Args:
        home: Lehr's home.
        feed: the newest message of the server about the run.
        stop: set when this process is to end; an open W&B run is then finished as it is.
    """

    def __init__(
        self, home: Path, run_id: str, feed: Callable[[], RunFeed], stop: threading.Event
    ) -> None:
        self._home = home
        self._feed = feed
        self._stop = stop
        self._notes = Notes(home, run_id)

    def keep(self) -> None:
        """Mirror until the run has ended or is paused, the request has changed, or ``stop`` is set.

        Raises:
            wandb.Error: W&B rejected a request, or could not be reached at the start.
        """
        while True:
            request = self._notes.request()
            known = self._notes.progress()
            if request is None or request.settings.mode == "off":
                if self._notes.forgotten:
                    self._notes.forget()  # Closing the W&B run can have written files.
                return
            if known and known.state == "done" and known.run_state == self._feed().state:
                return
            try:
                _Writing(self._home, self._notes, request, self._feed, self._stop).keep()
            except _Superseded:
                continue
            if self._stop.is_set() or self._notes.request() == request:
                return


class _Writing:
    """One opening of the W&B run."""

    def __init__(
        self,
        home: Path,
        notes: Notes,
        request: MirrorRequest,
        feed: Callable[[], RunFeed],
        stop: threading.Event,
    ) -> None:
        self._home = home
        self._replica = homes.replica_dir(home)
        self._notes = notes
        self._request = request
        self._feed = feed
        self._stop = stop
        self._offline = request.settings.mode == "offline"
        self._samples: list[list[Any]] = []
        self._written: dict[int, int] = {}
        """By attempt, its last step that was sent to W&B."""
        self._rows_at_start = 0
        """Rows that W&B had at the start."""
        self._began_late = False
        """Whether the run had ended when mirroring began: then no alerts are sent."""

    def keep(self) -> None:
        feed = self._feed()
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
            self._notes.write(self.progress)
            self._run.finish()

    def _beginning(self, feed: RunFeed) -> MirrorProgress:
        """Return the progress to begin with. Online, it has the limits and ends of the earlier one:
        they decided which rows W&B has.
        """
        known = None if self._offline else self._notes.progress()
        return MirrorProgress(
            request_at=self._request.at,
            state="mirroring",
            limits=_limits(feed) if known is None else known.limits,
            ends={} if known is None else known.ends,
        )

    def _open(self, feed: RunFeed) -> Any:
        request = self._request.settings
        folder = self._notes.folder / "files"
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
        run.define_metric(rows.STEP, hidden=True)
        run.define_metric("*", step_metric=rows.STEP)
        self._notes.write(self.progress)
        return run

    def _follow(self) -> bool:
        """Send new rows. Return whether the W&B run was closed because Lehr's run has ended or
        is paused.
        """
        while True:
            feed = self._feed()
            self._catch_up(feed)
            if self._stop.is_set() or self._notes.request() != self._request:
                return False
            if feed.resting and feed.closing is not None:
                self._close(feed)
                return True
            self._notes.write(self.progress)
            self._stop.wait(_LOOK_S)

    # --------------------------------------------------------------------------------- rows

    def _catch_up(self, feed: RunFeed) -> None:
        if self._offline:
            self.progress.limits = _limits(feed)
            for number, step in self._written.items():
                if step > self.progress.limits.get(number, step):
                    raise _Superseded
        for place, attempt in enumerate(feed.attempts):
            self._read(attempt)
            later = any(other.size for other in feed.attempts[place + 1 :])
            if attempt.open and not later:
                return
            if not self._stop.is_set():
                self.progress.ends.setdefault(attempt.number, self._offset(attempt))

    def _offset(self, attempt: AttemptFeed) -> int:
        return self.progress.offsets.get(attempt.number, 0)

    def _read(self, attempt: AttemptFeed) -> None:
        end = self.progress.ends.get(attempt.number, attempt.size)
        start = self._offset(attempt)
        for parsed in rows.read(self._replica, self._notes.run_id, attempt.number, start, end):
            self._on_message(parsed)
            self.progress.offsets[attempt.number] = parsed.end
            self.progress.records += 1
            if self.progress.records % _NOTE_EVERY == 0:
                self._notes.write(self.progress)
                if self._stop.is_set():
                    return

    def _on_message(self, parsed: rows.EventCounts) -> None:
        what = parsed.what
        if what is None or not rows.counts(what, self.progress.limits):
            return
        if isinstance(what, rows.HistoryRow):
            self.progress.rows += 1
            self._written[what.attempt] = max(what.step, self._written.get(what.attempt, 0))
            if self.progress.rows > self._rows_at_start:
                self._run.log(what.values)
            return
        record = what.record
        if isinstance(record, Sample):
            self._samples.append([record.step, what.attempt, record.prompt, record.text])
        elif self.progress.rows >= self._rows_at_start and not self._began_late:
            self._run.alert(title=record.code, text=record.message, level="WARN")

    # ---------------------------------------------------------------------------------- end

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
        self._notes.write(self.progress)

    def _refer(self, feed: RunFeed, saved: CheckpointFeed, run_directory: str) -> None:
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
