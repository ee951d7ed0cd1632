"""Make a lost ``lehr.db`` again, from the replica and the folders of the runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lehr.base import home as homes
from lehr.base.signed_tokens import AttemptTokens
from lehr.code.capsule_store import CapsuleStore
from lehr.control.exits import sound_exit
from lehr.control.finalize import path as transitions_to
from lehr.control.lifecycle import Desired, RunState
from lehr.specs import RunSpec
from lehr.specs.stored import StoredSpec
from lehr.store.ids import attempt_id
from lehr.store.records.run_rows import submission
from lehr.store.store import Store
from lehr.store.streams.replica import Replica, is_name
from lehr.store.tables import RunRow, Transition
from lehr.store.upkeep import lost_record
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.contract.records import Finished, Started, Stopping
from lehr_trainer.files import open_regular

UNKNOWN = (
    "sweeps and rollouts (their runs are there; no further trial starts)",
    "runs that never started, requests to runs, retries that are used, copies of checkpoints",
    "people's tokens, the audit, quotas, ends of nodes, excluded nodes",
)
"""What no other file says."""
_ACTOR = "lehr db rebuild"
_STOPPED = {
    "cancel": (RunState.CANCELLED, Desired.CANCEL),
    "prune": (RunState.PRUNED, Desired.PRUNE),
    "time_limit": (RunState.FAILED, Desired.RUN),
}
"""By the reason of a stop: the state of the run. After any other it is paused."""


@dataclass
class RebuiltRecord:
    """Runs by id."""

    runs: list[str] = field(default_factory=list)
    living: list[str] = field(default_factory=list)
    """How they ended is not known: they may be training, and count as running."""
    left_out: list[str] = field(default_factory=list)
    """Nothing says how they are configured, or, without streams here, whose they are."""
    variables: list[str] = field(default_factory=list)
    """They have environment variables, whose values are not known."""


def rebuild_record(home: Path) -> RebuiltRecord:
    """Make ``lehr.db`` again, in one transaction. The next server starts nothing until released.

    A run whose end is known gets its state. Any other counts as running: a living attempt goes on
    and reports, since its token follows from its id.
    """
    replica, folder = Replica(homes.replica_dir(home)), homes.runs_dir(home)
    known, others = {*lost_record.replicated(home)}, lost_record.with_folder(home)
    if lost_record.own_folder(home):
        known |= others
    for run_id in known:
        _complete(replica, folder / run_id)
    homes.hold(home, "lehr.db was made again, and runs without a known end may be training")
    CapsuleStore(home).keep_all()
    tokens = AttemptTokens(home)
    rebuilt, clock = RebuiltRecord(left_out=sorted(others - known)), _Clock()
    with Store(home, clock=clock, rebuilding=True) as store, store.transaction():
        found = [
            _Lost(store, folder / run_id, numbers)
            for run_id, numbers in lost_record.replicated(home).items()
        ]
        for run in sorted(found, key=lambda run: run.created_at):
            if run.spec is None:
                rebuilt.left_out.append(run.id)
                continue
            clock.at = run.created_at
            rebuilt.runs.append(run.id)
            rebuilt.variables += [run.id] if run.record.get("variables") else []
            if not run.external:
                _create(store, clock, run, run.spec)
            ended = [_attempt(store, clock, run, number, tokens) for number in run.attempts]
            rebuilt.living += [] if ended[-1] else [run.id]
    return rebuilt


class _Clock:
    """The time of the event that is recorded."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


class _Lost:
    """What the files say of a run."""

    def __init__(self, store: Store, folder: Path, numbers: list[int]) -> None:
        self.id, self.folder = folder.name, folder
        self.attempts = range(1, max(numbers) + 1)
        self.notes = {number: _note(layout.attempt_dir(folder, number)) for number in numbers}
        self.record = next((n.record for _, n in sorted(self.notes.items())[::-1] if n.record), {})
        self.started: dict[int, Started] = {}
        self.finished: dict[int, Finished] = {}
        self.stopping: str | None = None
        for number, record in store.events.records(self.id, ("started", "stopping", "finished")):
            if isinstance(record, Started):
                self.started[number], self.stopping = record, None
            elif isinstance(record, Stopping):
                self.stopping = record.reason
            elif isinstance(record, Finished):
                self.finished[number] = record
        earliest = min((one.time for one in self.started.values()), default=0.0)
        self.created_at = float(self.record.get("created_at") or earliest)
        self.spec: dict[str, Any] | None = self.record.get("spec")
        self.external = StoredSpec(self.spec or {}).external

    def end(self, number: int) -> tuple[dict[str, Any] | None, dict[str, Any]] | None:
        """Return the exit report and the last record of an attempt; None if it may live."""
        exit_note: dict[str, Any] | None = None
        try:
            with open_regular(layout.attempt_dir(self.folder, number) / "exit.json") as file:
                exit_note = sound_exit(json.load(file))
        except (OSError, ValueError, RecursionError):
            if number not in self.finished:
                return None if number == self.attempts[-1] else (None, {})
        if (last := self.finished.get(number)) is not None:
            return exit_note, last.model_dump()
        return exit_note, (exit_note or {}).get("finished") or {}


def _create(store: Store, clock: _Clock, run: _Lost, spec: dict[str, Any]) -> None:
    with store.db.write(what="rebuild") as session:
        row = RunRow(
            id=run.id,
            name=spec["name"],
            project=spec["project"],
            spec=spec,
            tags=spec["tags"],
            note=spec["notes"],
            priority=spec["priority"],
            claim=RunSpec.model_validate(spec).claim,
            state=RunState.QUEUED.value,
            submitted_by=run.record.get("submitted_by") or _ACTOR,
            forked_from=run.record.get("forked_from"),
            resume_from=run.record.get("fork_of"),
            evaluates=run.record.get("evaluates"),
            created_at=clock.at,
            queued_at=clock.at,
        )
        session.add(row)
        session.flush()
        session.add(Transition(run_id=run.id, **submission(clock.at, _ACTOR)))


def _attempt(store: Store, clock: _Clock, run: _Lost, number: int, tokens: AttemptTokens) -> bool:
    """Record an attempt and its effects. Return whether its end is known."""
    note, name = run.notes.get(number, LaunchNote()), attempt_id(run.id, number)
    clock.at = run.started[number].time if number in run.started else clock.at
    if run.external:
        store.transitions.begin_external(
            RunSpec.model_validate(run.spec),
            run_id=run.id,
            resume=True,
            # Its process made it.
            token_sha256=note.record.get("token_sha256") or tokens.sha256(name),
            at=clock.at,
            actor=run.record.get("submitted_by") or _ACTOR,
            provenance={},
        )
    else:
        store.transitions.begin_attempt(
            run.id,
            # A node that is not known counts as lost, unless the attempt itself reports.
            placement=note.record.get("placement") or [{"node": "unknown", "gpus": []}],
            resume_from=note.resume_from,
            token_sha256=tokens.sha256(name),
            actor=_ACTOR,
        )
    store.event_applier.apply(name)
    store.attempts.update(name, dispatched_at=clock.at)
    end = run.end(number)
    if end is None:
        return False
    exit_note, last = end
    clock.at = float(last.get("time") or (exit_note or {}).get("ended_at") or clock.at)
    store.attempts.update(name, exit=exit_note, exited_at=clock.at)
    store.attempts.close(name)
    state, desired, cause = _state(run, exit_note or {}, last)
    if number != run.attempts[-1]:
        state, desired = RunState.QUEUED, Desired.RUN
    old = RunState(store.runs.get(run.id).state)
    for new in transitions_to(old, state):
        store.transitions.apply(
            run.id,
            old=old,
            new=new,
            attempt=number,
            cause=cause,
            message=last.get("message") or (exit_note or {}).get("detail") or None,
            actor=_ACTOR,
            set={"desired": desired.value},
        )
        old = new
    return True


def _state(
    run: _Lost, exit_note: dict[str, Any], last: dict[str, Any]
) -> tuple[RunState, Desired, str]:
    if last.get("outcome") == "completed":
        return RunState.COMPLETED, Desired.RUN, "completed"
    if last.get("outcome") == "stopped" and run.external:
        return RunState.CANCELLED, Desired.RUN, "interrupted"
    if last.get("outcome") == "stopped":
        paused = RunState.PAUSED, Desired.PAUSE
        return *_STOPPED.get(run.stopping or "", paused), run.stopping or "stopped"
    cause = last.get("cause") or exit_note.get("reason") or "failed"
    return RunState.FAILED, Desired.RUN, cause


def _complete(replica: Replica, folder: Path) -> None:
    """Copy streams that the replica lacks altogether. A living sender continues at their end."""
    for attempt in layout.attempts(folder):
        name = attempt_id(folder.name, layout.attempt_number(attempt) or 0)
        replica.folder(name).mkdir(mode=0o700, exist_ok=True)
        for path in (attempt / layout.EVENTS, attempt / layout.MEDIA, *attempt.glob("*.log")):
            regular = path.is_file() and not path.is_symlink()
            if is_name(path.name) and regular and not replica.size(name, path.name):
                draft = replica.folder(name) / f".{path.name}.tmp"  # It may be interrupted.
                with open_regular(path) as source, draft.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
                draft.replace(replica.path(name, path.name))


def _note(attempt: Path) -> LaunchNote:
    try:
        with open_regular(attempt / layout.LAUNCH) as file:
            return LaunchNote.model_validate_json(file.read())
    except (OSError, ValidationError):
        return LaunchNote()
