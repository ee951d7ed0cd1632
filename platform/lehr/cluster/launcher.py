"""Start and stop attempts through the agents of their nodes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from lehr.base import killpoints, own_logs
from lehr.base.signed_tokens import AttemptTokens
from lehr.cluster.alarm import GATHER_S, Alarm
from lehr.cluster.bridge_client import AgentRefused, BridgeClient
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.launch_spec import (
    LaunchSettings,
    launches,
    placement_json,
    placement_of,
)
from lehr.cluster.membership import Cluster
from lehr.control import reconcile as rc
from lehr.control.resources import Placement
from lehr.errors import LehrError
from lehr.store import Store
from lehr.store.tables import Attempt, CheckpointRow, RunRow

log = logging.getLogger(__name__)

STOP_AGAIN_S = 5.0
"""Seconds before the same call to stop an attempt is repeated."""


class Launcher:
    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        bridge: BridgeClient,
        heartbeats: HeartbeatTable,
        tokens: AttemptTokens,
        settings: LaunchSettings,
        alarm: Alarm,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._bridge = bridge
        self._heartbeats = heartbeats
        self._tokens = tokens
        self._settings = settings
        self._alarm = alarm
        self._guard = threading.Lock()
        self._answers: list[tuple[str, str, BaseException | None]] = []
        self._answered_all: set[str] = set()
        self._asked: dict[tuple[str, str, rc.StopLevel], float] = {}

    def begin(self, run_id: str, placement: Placement, resume_from: str | None) -> None:
        """Record the attempt, then start it: agents only see attempts that are recorded.

        ``resume_from``: the checkpoint that it resumes from.
        """
        run = self._store.runs.get(run_id)
        attempt_id = f"{run.id}-{run.attempt + 1}"
        attempt = self._store.transitions.begin_attempt(
            run.id,
            placement=placement_json(placement),
            resume_from=resume_from,
            token_sha256=self._tokens.sha256(attempt_id),
        )
        if attempt is not None:
            assert attempt.id == attempt_id
            self.launch(run, attempt)

    def launch(self, run: RunRow, attempt: Attempt) -> None:
        """Call the agents of its nodes. Repeating the call is harmless.

        What becomes of it is noted for the next tick, which decides what follows.
        """
        heartbeat = self._heartbeats.of(attempt.id)
        addresses = {name: member.address for name, member in self._cluster.members().items()}
        token = self._tokens.token(attempt.id)
        try:
            saved = self._saved(run, attempt)
            orders = launches(run, attempt, token, self._settings, addresses, saved)
        except (LehrError, ValueError) as error:
            heartbeat.start_impossible = error
            self._alarm.within(GATHER_S)
            return
        heartbeat.in_flight += len(placement_of(attempt))
        for node, launch in orders.items():
            killpoints.reached("server: before a start request is sent")
            future = self._bridge.request("start", node, launch=launch)
            killpoints.reached("server: after a start request is sent")
            gpus = tuple(launch["gpus"])
            future.add_done_callback(partial(self._answered, node, attempt.id, gpus))

    def _saved(self, run: RunRow, attempt: Attempt) -> list[CheckpointRow]:
        """Return the checkpoints of the run that the attempt continues."""
        if attempt.resume_from is None:
            return []
        another = Path(attempt.resume_from).is_absolute()
        source = run.forked_from if another else run.id
        return self._store.checkpoints.of_run(source) if source is not None else []

    def _answered(
        self, node: str, attempt_id: str, gpus: tuple[int, ...], done: Future[Any]
    ) -> None:
        """Handle an answer. Called in the bridge's thread, in the order in which agents acted."""
        error = done.exception()
        if error is None:
            killpoints.reached("server: after a start is confirmed")
            self._cluster.note_started(node, attempt_id, gpus)
        with self._guard:
            self._answers.append((attempt_id, node, error))
        self._alarm.within(GATHER_S)

    def note_answers(self) -> None:
        """Count the answers to start calls that have come since the last call."""
        with self._guard:
            answers, self._answers = self._answers, []
        for attempt_id, node, error in answers:
            heartbeat = self._heartbeats.of(attempt_id)
            heartbeat.in_flight -= 1
            if error is not None:
                fields = own_logs.of_attempt(attempt_id)
                log.warning("start of %s: %s", attempt_id, error, extra=fields)
                # Only a rejection by an agent counts; a broken bridge is no fault of the node.
                if isinstance(error, AgentRefused):
                    heartbeat.rejected_starts += 1
                    heartbeat.rejection = str(error), node
                heartbeat.start_failed = self._heartbeats.now()
            else:
                heartbeat.started_on.add(node)
            if heartbeat.in_flight == 0:
                self._answered_all.add(attempt_id)

    def answered(self) -> list[str]:
        """Return the attempts whose start calls are all answered, and not recorded yet."""
        return sorted(self._answered_all)

    def record_start(self, attempt_id: str) -> None:
        """Record that the attempt is started, if every one of its nodes has confirmed it."""
        heartbeat = self._heartbeats.of(attempt_id)
        if self._is_started(attempt_id, heartbeat.started_on):
            self._store.attempts.update(attempt_id, dispatched_at=self._store.clock())
            # A call may wait long for its node: only now is a heartbeat to be expected.
            heartbeat.first_known = self._heartbeats.now()
        self.forget_answers(attempt_id)

    def forget_answers(self, attempt_id: str) -> None:
        """Do not try again to record the start of the attempt."""
        self._answered_all.discard(attempt_id)

    def _is_started(self, attempt_id: str, nodes: Collection[str]) -> bool:
        """Return whether every node of the attempt is among these."""
        if not nodes:
            return False
        placement = placement_of(self._store.attempts.get(attempt_id))
        return all(share.node in nodes for share in placement)

    def stop(self, action: rc.StopAttempt) -> None:
        """Stop it through its node's agent. Heartbeats carry the same order in case Ray is down."""
        self._heartbeats.of(action.attempt_id).stop_level = (action.stop_level, action.reason)
        now = self._heartbeats.now()
        for node in action.nodes:
            key = (action.attempt_id, node, action.stop_level)
            if (wait := self._asked.get(key, -math.inf) + STOP_AGAIN_S - now) > 0:
                self._alarm.within(wait)
                continue
            self._asked[key] = now
            self._alarm.within(STOP_AGAIN_S)
            killpoints.reached("server: before a stop request is sent")
            self._bridge.request(
                "stop",
                node,
                attempt_id=action.attempt_id,
                stop_level=action.stop_level.value,
                reason=action.reason,
            )
        self._asked = {k: at for k, at in self._asked.items() if now - at < 10 * STOP_AGAIN_S}

    def record_exit(self, attempt_id: str, note: Mapping[str, Any]) -> None:
        self._store.attempts.update(attempt_id, exit=dict(note), exited_at=self._store.clock())
        self._alarm.within(GATHER_S)
