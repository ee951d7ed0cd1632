"""The server's side of the mirror: selects runs, keeps the child process, feeds it.

It has its own thread, which reads the store and writes to a pipe. The child cannot affect an API
request or a training. W&B manages the key (WANDB_API_KEY, or the netrc of ``wandb login``); Lehr
checks that it exists, and never reads it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import netrc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lehr.app.presenters import Presenter, checkpoints
from lehr.app.wandb_mirror.state_files import (
    AttemptFeed,
    Closing,
    MirrorProgress,
    MirrorRequest,
    Notes,
    RunFeed,
    known,
)
from lehr.base import home as homes
from lehr.base import own_logs
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.schemas.runs import RunDetail
from lehr.specs.run import Tracking, WandbTracking
from lehr.store import Store
from lehr.store.changes import Change
from lehr.store.streams.replica import SCORES
from lehr.store.tables import RunRow
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.extras import install

log = logging.getLogger(__name__)

_AGAIN_S = 5.0  # Pause before the next child, after one that ended or could not start.
_IDLE_S = 30.0  # The child is ended after this many seconds without a run to mirror.
_GRACE_S = 12.0
_OF_ONE_RUN = frozenset(
    f"WANDB_{name}"
    for name in (
        *("RUN_ID", "NAME", "NOTES", "TAGS", "JOB_TYPE", "RUN_GROUP", "PROJECT", "SWEEP_ID"),
        *("RESUME", "MODE", "DISABLED", "DIR", "PROGRAM"),
    )
)
"""Variables that define a process's W&B run; the mirror has many runs, each set by its spec."""
_BASE_URL = "https://api.wandb.ai"
_INTERRUPTED = 130  # The exit code of a program that was interrupted.


class MirrorController:
    """Carries out ``tracking.wandb`` and ``Run.mirror()``; looks each ``every_s``."""

    def __init__(
        self, store: Store, presenter: Presenter, home: Path, *, every_s: float = 3.0
    ) -> None:
        self._store = store
        self._presenter = presenter
        self._home = home
        self._every_s = every_s
        self._guard = threading.Lock()
        self._changed: set[str] = set()
        self._mirrors: dict[str, bool] = {}
        """Whether the mirror of a run is complete; an evaluation may report scores even then."""
        self._child: subprocess.Popen[str] | None = None
        self._wanted_at = 0.0
        self._not_before = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="wandb-mirror", daemon=True)

    def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._on_change)
        self._thread.start()

    def stop(self) -> None:
        """Stop. Open mirrors are finished as they are; the next start continues them."""
        self._unsubscribe()
        self._stopping.set()
        child = self._child
        if child is not None:
            threading.Thread(target=self._end, args=(child,), daemon=True).start()
        self._thread.join(timeout=_GRACE_S + 5)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def _on_change(self, change: Change) -> None:
        # Steps only matter to a mirror. A look at each run that trains would cost too much.
        steps = change.kind == "metrics" or change.progress
        if change.id in self._mirrors if steps else change.kind == "run":
            with self._guard:
                self._changed.add(change.id)

    def _keep(self) -> None:
        began = False
        while not self._stopping.is_set():
            try:
                if not began:
                    self._changed |= {run.id for run in self._store.runs.tracked()}
                    self._changed |= {notes.run_id for notes in known(self._home)}
                    began = True
                self._look()
            except Exception:
                log.exception("the W&B mirror could not check for new events")
            self._stopping.wait(self._every_s)
        if self._child is not None:
            self._end(self._child)

    def _look(self) -> None:
        with self._guard:
            changed, self._changed = self._changed, set()
        for run_id in changed:
            try:
                self._judge(run_id)
            except Exception:  # noqa: BLE001 - logged; the changes of the others count
                self._unreadable(run_id)
        open_mirrors = {run_id for run_id, done in self._mirrors.items() if not done}
        if not open_mirrors:
            if self._child is not None and time.monotonic() - self._wanted_at > _IDLE_S:
                child, self._child = self._child, None
                self._end(child)
            return
        self._wanted_at = time.monotonic()
        fresh = self._ensure_child()
        if self._child is None:
            return
        for run_id in sorted(open_mirrors if fresh else open_mirrors & changed):
            self._tell(run_id)
        for run_id in sorted(open_mirrors):
            self._judge(run_id)

    def _judge(self, run_id: str) -> None:
        notes = Notes(self._home, run_id)
        try:
            run = self._store.runs.get(run_id)
        except NotFound:
            return
        if run.archived and self._store.runs.is_deleted(run_id):
            self._mirrors.pop(run_id, None)
            if not notes.forget():
                self._look_again(run_id)
            return
        request = notes.request()
        if request is None:
            settings = Tracking.model_validate(run.spec.get("tracking") or {}).wandb
            if settings is not None and settings.mode != "off":
                request = MirrorRequest(settings=settings, at=run.created_at)
                notes.write(request)
        if request is not None and request.settings.mode != "off":
            self._mirrors[run_id] = self._is_done(run)
        else:
            self._mirrors.pop(run_id, None)

    def _is_done(self, run: RunRow) -> bool:
        progress = Notes(self._home, run.id).progress()
        if progress is not None and progress.state == "done":
            scored = {a.number: a.scores for a in _attempts(self._store, run.id) if a.scores}
            return (progress.run_state, progress.scored) == (run.state, scored)
        return RunState(run.state).ended and run.attempt == 0

    def _ensure_child(self) -> bool:
        """Start the child if needed. Return whether it was started now."""
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return False
            self._child = None
            message = f"the mirror's process ended (exit {code}); restarting it"
            log.warning(message)
            self._say(message)
            self._not_before = time.monotonic() + _AGAIN_S
        if time.monotonic() < self._not_before:
            return False
        missing = lack("offline")
        if missing is not None:
            self._say(". ".join(missing))
            self._not_before = time.monotonic() + _AGAIN_S
            return False
        logs = homes.logs_dir(self._home)
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "wandb.log").open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "lehr.app.wandb_mirror.worker", str(self._home)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=_environment(self._home),
                start_new_session=True,  # Ctrl-C must only reach the server.
            )
        return True

    def _say(self, message: str) -> None:
        for run_id in [run_id for run_id, done in self._mirrors.items() if not done]:
            Notes(self._home, run_id).fail(message)

    def _tell(self, run_id: str) -> None:
        child = self._child
        if child is None or child.stdin is None:
            return
        try:
            feed = run_feed(self._store, self._presenter, self._home, run_id)
            child.stdin.write(feed.model_dump_json() + "\n")
            child.stdin.flush()
        except OSError:
            pass  # It has ended; the next pass notices.
        except Exception:  # noqa: BLE001 - logged; the others are fed
            self._unreadable(run_id)

    def _unreadable(self, run_id: str) -> None:
        fields = own_logs.of("run", run_id)
        log.exception("run %s cannot be read for its mirror", run_id, extra=fields)  # noqa: LOG004 - of its callers' handlers
        self._look_again(run_id)

    def _look_again(self, run_id: str) -> None:
        with self._guard:
            self._changed.add(run_id)

    def _end(self, child: subprocess.Popen[str]) -> None:
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _environment(home: Path) -> dict[str, str]:
    """Return the server's environment without variables that define a W&B run, and with caches
    in the home.
    """
    folders = {
        "WANDB_DATA_DIR": str(home / "wandb" / ".data"),
        "WANDB_CACHE_DIR": str(home / "wandb" / ".cache"),
    }
    return folders | {k: v for k, v in os.environ.items() if k not in _OF_ONE_RUN}


def request_for(home: Path, run_id: str, settings: WandbTracking, *, at: float) -> None:
    notes = Notes(home, run_id)
    notes.write(MirrorRequest(settings=settings, at=at))
    notes.write(MirrorProgress(request_at=at))


def lack(mode: Literal["online", "offline", "off"]) -> tuple[str, str] | None:
    """Return what is missing for a mirror of this mode, and what to do; None when nothing is."""
    if mode == "off":
        return None
    if importlib.util.find_spec("wandb") is None:
        return (
            "the package wandb is not installed on the server's machine",
            f"Install it there: {install('lehr[wandb]')}",
        )
    if mode == "online" and not _has_key():
        return (
            f"the server has no W&B API key for {_host()}",
            "Set one on the server (`wandb login` or WANDB_API_KEY), or use mode: offline.",
        )
    return None


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(path).authenticators(_host()) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _host() -> str:
    return urlsplit(os.environ.get("WANDB_BASE_URL") or _BASE_URL).hostname or _BASE_URL


def _attempts(store: Store, run_id: str) -> list[AttemptFeed]:
    sizes = ((one, store.streams.sizes(one.id)) for one in store.attempts.of_run(run_id))
    return [
        AttemptFeed(
            number=one.number, size=own.get(EVENTS, 0), scores=own.get(SCORES, 0), open=one.open
        )
        for one, own in sizes
    ]


def run_feed(store: Store, presenter: Presenter, home: Path, run_id: str) -> RunFeed:
    """Return all that the mirror needs of a run besides its streams."""
    run, attempts = store.runs.get(run_id), _attempts(store, run_id)
    sweep = store.sweeps.get(run.sweep_id).name if run.sweep_id else None
    feed = RunFeed(
        run_id=run.id,
        name=run.name,
        project=run.project,
        sweep=sweep,
        tags=run.tags,
        notes=run.spec.get("notes") or "",
        state=run.state,
        config=_config(run, sweep, store.runs.provenance(run)),
        attempts=attempts,
        # Read after the sizes, so it is never older than the streams up to those sizes.
        spans={span.attempt: span.limit for span in store.series.spans(run_id)},
    )
    if not feed.resting:
        return feed
    detail = presenter.runs.detail(run)
    return feed.model_copy(update={"closing": _closing(store, home, run, detail)})


def _config(run: RunRow, sweep: str | None, provenance: dict[str, Any]) -> dict[str, Any]:
    """Return the training's config and its project. Without ``env``, which may contain secrets."""
    git = provenance.get("git") or {}
    lehr = {
        "run": run.id,
        "sweep": sweep,
        "project": run.project,
        "submitted_by": run.submitted_by,
        "forked_from": run.forked_from,
        "commit": git.get("commit"),
        "code": run.stored.code_digest,
    }
    return {"train": run.stored.config, "resources": run.stored.resources, "lehr": lehr}


def _closing(store: Store, home: Path, run: RunRow, detail: RunDetail) -> Closing:
    summary: dict[str, Any] = {info.name: info.last for info in store.series.metrics(run.id)}
    summary |= {
        "lehr/state": run.state,
        "lehr/reason": run.reason,
        "lehr/attempts": run.attempt,
        "lehr/alerts": detail.alerts,
        "lehr/device": detail.device,
        "lehr/parameters": detail.parameters,
    }
    return Closing(
        summary={name: value for name, value in summary.items() if value is not None},
        checkpoints=[
            point
            for point in checkpoints(store, run)
            if point.removed_at is None or point.copy_state == "there"
        ],
        run_directory=str(homes.runs_dir(home) / run.id),
        exit_code=_exit_code(run, detail),
    )


def _exit_code(run: RunRow, detail: RunDetail) -> int:
    """Return 0 if the result is valid: completed, pruned, paused so far."""
    if run.state == RunState.CANCELLED:
        return _INTERRUPTED
    if run.state != RunState.FAILED:
        return 0
    code = detail.attempts[-1].exit_code if detail.attempts else None
    return code if code and 0 < code < 256 else 1
