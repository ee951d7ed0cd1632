"""The server's answers to attempts: heartbeats, exits, tokens. Called from request threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from lehr.base import killpoints
from lehr.cluster.executor import finalize
from lehr.cluster.exits import ended_attempt
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.run_values import situation
from lehr.control import finalize as control
from lehr.control.due import heartbeat_decides
from lehr.control.exits import delivered_parts, sound_exit, with_part
from lehr.control.lifecycle import RunState, orders
from lehr.control.liveness import STOPPING, Pace, pace
from lehr.errors import StoreUnavailable, UserError
from lehr.store import Store
from lehr.store.scores import report_scores
from lehr.store.tables import Attempt, RunRow

log = logging.getLogger(__name__)


class AttemptProtocol:
    def __init__(self, store: Store, heartbeats: HeartbeatTable, wake: Callable[[], None]) -> None:
        self._store = store
        self._heartbeats = heartbeats
        self._wake = wake
        self._living: Mapping[str, RunRow] = {}
        self._pace = Pace()
        self._exits = threading.Lock()
        """Serializes exits: two parts of a gang must not overwrite each other's record."""

    def on_heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Note a heartbeat, and return the orders for the attempt.

        Heartbeats stay in memory; the dispatcher writes them all at once, every few seconds.
        """
        attempt, run = self._store.attempts.with_run(attempt_id)
        newer = run.attempt != attempt.number or not RunState(run.state).reports
        fenced = newer or attempt.exited_at is not None
        keep = self._store.checkpoints.needed_by_forks(run.id)
        for name, size in (payload.get("shorter") or {}).items():
            self._store.streams.record_gap(attempt_id, name, size)
        return self._note(run, attempt_id, payload, fenced=fenced, keep=keep)

    def publish(self, living: Mapping[str, RunRow], senders: int) -> None:
        """Set what heartbeats are answered from: attempts as ``Loader.living`` returns them, and
        how many workers send, which decides how often each should.
        """
        self._living = living
        self._pace = pace(senders)

    def heartbeat_from_memory(
        self, attempt_id: str, payload: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Do what ``on_heartbeat`` does, with the run as of the last tick.

        Return None if the attempt was not living then, or if its orders or news need the store. The
        orders may be one tick old; a change of the run causes a tick at once.
        """
        run = self._living.get(attempt_id)
        if run is None or payload.get("shorter"):
            return None
        return self._note(run, attempt_id, payload, fenced=False)

    def _note(
        self,
        run: RunRow,
        attempt_id: str,
        payload: dict[str, Any],
        *,
        fenced: bool,
        keep: Collection[str] = (),
    ) -> dict[str, Any]:
        elapsed_s = payload.get("elapsed_s")
        given = orders(situation(run), run.checkpoint_seq, fenced=fenced, keep=keep)
        decides = not fenced and heartbeat_decides(
            running=run.state == RunState.RUNNING.value,
            time_limit_s=run.stored.time_limit_s,
            elapsed_s=elapsed_s,
            stall_limit_s=run.stored.stall_limit_s,
            since_contact_s=self._heartbeats.since_contact_s(attempt_id),
        )
        self._heartbeats.heartbeat(
            attempt_id,
            step=payload.get("step"),
            elapsed_s=elapsed_s,
            copying=bool(payload.get("copying")),
            node_rank=int(payload.get("node_rank") or 0),
            at=self._store.clock(),
        )
        if decides:
            self._wake()
        answer: dict[str, Any] = {"orders": given.model_dump(mode="json"), "fenced": fenced}
        killpoints.reached("server: before a heartbeat is answered")
        level, reason = self._heartbeats.seen(attempt_id).stop_level or (None, None)
        answer |= {"stop_level": level.value if level else None, "stop_reason": reason}
        pace = self._pace if answer["orders"]["desired"] == "run" else STOPPING
        answer |= {"interval_s": pace.heartbeat_s, "send_s": pace.send_s}
        return answer

    def on_exit(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record an exit; close the attempt and finalize its run once all its streams have arrived.

        Repeating the same call gives the same answer.

        Raises:
            UserError: the attempt has no such part.
        """
        store = self._store
        report = sound_exit(payload["exit"])
        if "dropped" in report:
            dropped = report["dropped"]
            log.warning("attempt %s: parts of its exit are dropped: %s", attempt_id, dropped)
        payload = {**payload, "exit": report}
        held = store.streams.sizes(attempt_id)
        complete = True
        for name, size in payload["sizes"].items():
            complete = complete and held.get(name, 0) >= size
            if held.get(name, 0) > size:
                store.streams.record_gap(attempt_id, name, size)
        with self._exits:
            attempt = store.attempts.get(attempt_id)
            if len(attempt.placement) > 1:
                complete_as_a_whole = self._note_part(attempt, payload, complete=complete)
            else:
                complete_as_a_whole = complete
                if attempt.exited_at is None:
                    ended_at = store.clock()
                    if not attempt.placement:  # Its process may have ended days ago, offline.
                        ended_at = min(ended_at, report.get("ended_at") or ended_at)
                    store.attempts.update(attempt_id, exit=payload["exit"], exited_at=ended_at)
        if complete_as_a_whole:
            self._finalize(attempt_id)
            report_scores(store, attempt.run_id)  # Its end may have come before its streams.
            store.attempts.close(attempt_id)
        self._wake()
        killpoints.reached("server: before an exit report is answered")
        return {"closed": complete, "offsets": held}

    def _finalize(self, attempt_id: str) -> None:
        """Finalize the run. On failure the dispatcher tries again, so that the shim can end: it
        logs an error that lasts, once. It also decides again if another thread changes the run
        meanwhile (the trainer's first record, a cancel).
        """
        try:
            self._store.event_applier.apply(attempt_id)
            killpoints.reached("server: before a run is finalized")
            attempt, run = self._store.attempts.with_run(attempt_id)
            ended = ended_attempt(self._store, run, attempt, self._heartbeats)
            action = None if ended is None else control.finalize(replace(ended, delivered=True))
            if action is not None:
                finalize(self._store, action)
        except (StoreUnavailable, OSError, MemoryError):
            raise  # The dispatcher will retry.
        except Exception:
            log.debug("attempt %s: its run is not finalized yet", attempt_id, exc_info=True)

    def _note_part(self, attempt: Attempt, payload: dict[str, Any], *, complete: bool) -> bool:
        """Record the exit of one node's part. Return whether all parts and all streams are
        complete.
        """
        note = attempt.exit or {}
        number = int(payload.get("node_rank") or 0)
        if number >= len(attempt.placement):
            raise UserError(
                f"node_rank is {number}; {attempt.id} has parts 0 to {len(attempt.placement) - 1}."
            )
        rank = str(number)
        part = {**payload["exit"], "delivered": complete}
        if note.get("parts", {}).get(rank) != part:
            note = with_part(note, rank, part)
            ended = attempt.exited_at
            if ended is None and len(note["parts"]) == len(attempt.placement):
                ended = self._store.clock()
            self._store.attempts.update(attempt.id, exit=note, exited_at=ended)
        return delivered_parts(note) == len(attempt.placement)
