"""The dispatcher: one loop that observes, decides and acts. Every action is fenced.

A tick reads the store and the cluster, calls the pure functions of ``lehr.control`` for decisions,
and carries them out. No decision depends on memory of an earlier tick, so a restarted server just
continues. The loop wakes up on every change, and once per second.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

from lehr import home as homes
from lehr.cluster import snapshot
from lehr.cluster.attempt_protocol import AttemptProtocol
from lehr.cluster.bridge_client import BridgeClient
from lehr.cluster.finalize import TIME_LIMIT, finalize, give_up, request_message
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.isolation import Isolation
from lehr.cluster.launch_spec import LaunchSettings
from lehr.cluster.launcher import Launcher
from lehr.cluster.membership import Cluster, Member
from lehr.cluster.node_controller import EXCLUDED, NodeController, excluded
from lehr.cluster.rollout_controller import RolloutController
from lehr.cluster.run_cache import RunCache
from lehr.cluster.sweep_controller import SweepController
from lehr.cluster.tokens import AttemptTokens
from lehr.control import reconcile as rc
from lehr.control.lifecycle import ACTIVE, Desired, RunState
from lehr.control.liveness import Liveness, Thresholds
from lehr.control.queue import plan
from lehr.control.resources import Need, can_ever_place
from lehr.errors import NotFound, nearest
from lehr.node import gpu_inventory
from lehr.specs.run import Resources
from lehr.store import Change, Store
from lehr.store.ids import run_of
from lehr.store.tables import Attempt, RunRow

log = logging.getLogger(__name__)

TICK_S = 1.0
GATHER_S = 0.02
"""Wait this long after a wake-up, so that changes that come together are handled together."""
FINALIZE_WAIT_S = 20.0
"""Limit for the streams of an exited attempt. After it, exit.json alone decides."""
DEFAULT_TIMEOUTS = rc.Timeouts()
DEFAULT_THRESHOLDS = Thresholds()
TRAINER_VARIABLE = "LEHR_TRAINER_MODULE"
"""Tests replace the trainer by something smaller."""


class Dispatcher:
    """Starts queued runs, watches running ones, finalizes ended ones.

    Runs in a thread of the server's process. ``stop`` leaves every training running.

    Args:
        store: the store.
        home: Lehr's home.
        ray_address: an existing cluster, or None for an embedded Ray head.
        gpus: GPUs of the embedded head; logical ones on a machine without any. None: see
            ``gpu_inventory.gpus_to_offer``.
        server_url: where shippers reach this server.
        trainer: the module that trains, or a script ending in ``.py``.
        node: the embedded head's node name; by default the host's.
        timeouts: time limits for the steps of an attempt's life.
        thresholds: when an attempt counts as silent.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        ray_address: str | None = None,
        gpus: int | None = None,
        server_url: str,
        trainer: str | None = None,
        node: str | None = None,
        timeouts: rc.Timeouts = DEFAULT_TIMEOUTS,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
    ) -> None:
        self.store = store
        self.heartbeats = HeartbeatTable()
        self.handlers = AttemptProtocol(store, self.heartbeats, self.wake)
        self._timeouts = timeouts
        self._thresholds = thresholds
        name = node or socket.gethostname().partition(".")[0]
        expected: dict[str, list[dict[str, Any]]] = {}
        offered = 0
        if ray_address is None:
            offered = gpu_inventory.gpus_to_offer(gpus, home)
            expected[name] = [gpu.to_json() for gpu in gpu_inventory.node_gpus(offered)]
        self._embedded = ray_address is None
        self._cluster = Cluster(expected)
        self._bridge = BridgeClient(
            home,
            ray_address=ray_address,
            gpus=offered,
            node=name,
            server_url=server_url,
            on_news=self._on_news,
            on_state=self._bridge_state,
        )
        self._launcher = Launcher(
            store,
            self._cluster,
            self._bridge,
            self.heartbeats,
            AttemptTokens(home),
            LaunchSettings(
                runs_dir=homes.runs_dir(home),
                data_dir=homes.data_dir(home),
                server_url=server_url,
                trainer=trainer or os.environ.get(TRAINER_VARIABLE) or "lehr_trainer",
            ),
            self.wake,
        )
        self._isolation = Isolation(partial(give_up, store), self.heartbeats.now)
        self._runs = RunCache(store, self._isolation)
        self._sweeps = SweepController(store)
        self._rollouts = RolloutController(store, homes.runs_dir(home))
        self._nodes = NodeController(store)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._attempts_with_new_events: set[str] = set()
        """Attempts with new events since the last tick."""
        self._self_reported_exits: set[str] = set()
        """Attempts that reported their own exit and are still listed by agents."""
        self._order: tuple[str, ...] = ()
        self._unsubscribe = store.subscribe(self._changed)
        self._thread = threading.Thread(target=self._loop, name="dispatcher", daemon=True)

    # --- called by the server ----------------------------------------------------------------

    def start(self) -> None:
        """Start the loop. Returns at once; Ray starts in the background."""
        self._attempts_with_new_events.update(
            attempt.id for attempt in self.store.attempts.list_open()
        )
        self._sweeps.enqueue_all()
        self._rollouts.enqueue_all()
        self._thread.start()
        self._bridge.start()

    def stop(self) -> None:
        """Stop the loop. Trainings, agents and the Ray head continue."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._bridge.started:
            self._bridge.stop()
        self._unsubscribe()

    def wake(self) -> None:
        """Run the next tick now."""
        self._wake.set()

    def on_heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record a heartbeat. The answer contains the attempt's orders."""
        return self.handlers.on_heartbeat(attempt_id, payload)

    def on_exit(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record the exit of an attempt. The answer lists the bytes that are still missing."""
        answer = self.handlers.on_exit(attempt_id, payload)
        self._nodes.note_end()
        return answer

    @property
    def cluster(self) -> Cluster:
        """The nodes and what is known of them."""
        return self._cluster

    def queue_order(self) -> tuple[str, ...]:
        """Return the ids of the waiting runs in queue order, as of the last tick."""
        return self._order

    def exclude_node(self, name: str, reason: str) -> None:
        """Place no new runs on the node. Its running runs continue.

        Raises:
            NotFound: the cluster has no such node.
        """
        self._known_node(name)
        self.store.nodes.note(name, EXCLUDED, reason, actor="user")
        self.wake()

    def readmit_node(self, name: str) -> None:
        """Place runs on the node again, and clear its failure count.

        Raises:
            NotFound: the cluster has no such node.
        """
        self._known_node(name)
        self.store.nodes.note(name, "readmitted", "readmitted by the user", actor="user")
        self._runs.forget_waiting()
        self.wake()

    def _known_node(self, name: str) -> None:
        known = {*self._cluster.members(), *self.store.nodes.notes()}
        if name not in known:
            near = nearest(name, known)
            raise NotFound(
                f"The cluster has no node {name!r}.",
                hint=f"Did you mean {near}?" if near else f"It has: {', '.join(sorted(known))}.",
            )

    def can_ever_place(self, resources: Resources) -> str | None:
        """Return why the cluster could never hold it; None if it could, or if that is unknown.

        A GPU type that no node has is not rejected: the run waits and shows why, since a node of
        that type may join. More GPUs than the cluster has are an error in the spec.
        """
        nodes = [member.as_node() for member in self._cluster.members().values()]
        if not self._embedded and not nodes:
            return None
        return can_ever_place(Need(resources.gpus, resources.nodes), nodes)

    def silences(self) -> dict[str, Liveness]:
        """Return the liveness by run id, for runs that have a living attempt."""
        return {
            attempt.run_id: self.heartbeats.silence(attempt.id, self._thresholds)
            for attempt in self.store.attempts.list_open()
            if attempt.exited_at is None and attempt.dispatched_at is not None
        }

    # -------------------------------------------------------------------------------- news

    def _changed(self, change: Change) -> None:
        self._sweeps.changed(change)
        self._rollouts.changed(change)
        if change.kind == "run":
            self._runs.changed(change.id)
            if threading.current_thread() is not self._thread:
                self._wake.set()  # Changes by the tick itself need no other tick.
        elif change.kind == "metrics" and change.attempt is not None:
            with self._guard:
                self._attempts_with_new_events.add(f"{change.id}-{change.attempt}")

    def _on_news(self, news: dict[str, Any]) -> None:
        before = self._cluster.members()
        self._cluster.on_news(news)
        after = self._cluster.members()
        if snapshot.cluster_summary(before) != snapshot.cluster_summary(after):
            self.store.notify(Change("cluster", ""))
        self._wake.set()

    def _bridge_state(self, state: Any, message: str | None) -> None:
        if self._cluster.set_state(state, message):
            log.info("ray is %s%s", state, f": {message}" if message else "")
            self.store.notify(Change("cluster", ""))
            self._wake.set()

    # -------------------------------------------------------------------------------- loop

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.tick()
            except Exception:
                # The next tick starts from the store again; a lasting error shows in the log.
                log.exception("a tick failed")
                self._stopping.wait(TICK_S)
            if self._wake.wait(TICK_S):
                self._stopping.wait(GATHER_S)

    def tick(self) -> None:
        """Observe, decide, act: once."""
        self._launcher.note_answers()
        self._apply_events()
        self._runs.refresh()
        self._finalize_ended()
        self._sweeps.tick()
        self._rollouts.tick()
        self._runs.refresh()
        self._apply_requests()
        self._runs.refresh()
        attempts = self.store.attempts.list_open()
        self.heartbeats.keep_only(attempt.id for attempt in attempts)
        members = snapshot.with_reported_exits(
            self._cluster.members(), attempts, self.store, self._self_reported_exits
        )
        self._reconcile(attempts, members)
        self._nodes.tick([name for name, member in members.items() if member.usable])
        self._start_waiting(attempts, members)

    def _apply_events(self) -> None:
        with self._guard:
            attempt_ids, self._attempts_with_new_events = self._attempts_with_new_events, set()
        left = set(attempt_ids)
        try:
            for attempt_id in attempt_ids:
                run_id, what = run_of(attempt_id), "reading its events"
                apply = partial(self.store.event_applier.apply, attempt_id)
                if self._isolation.do(run_id, what, apply) or not self._isolation.tries_again(
                    run_id, what
                ):
                    left.discard(attempt_id)
        finally:
            with self._guard:
                self._attempts_with_new_events |= left

    def _finalize_ended(self) -> None:
        """Finalize runs whose attempt has exited."""
        active = self._runs.runs(ACTIVE)
        newest = self.store.attempts.newest([run.id for run in active])
        for run in active:
            attempt = newest.get(run.id)
            if attempt is not None and attempt.exited_at is not None:
                self._isolation.do(run.id, "finalizing it", partial(self._finalize, attempt))

    def _finalize(self, attempt: Attempt) -> None:
        if attempt.open and not (attempt.exit or {}).get("stand_in"):
            # Its streams are still arriving; their arrival finalizes the run.
            heartbeat = self.heartbeats.of(attempt.id)
            heartbeat.ended_since = heartbeat.ended_since or self.heartbeats.now()
            if self.heartbeats.now() - heartbeat.ended_since < FINALIZE_WAIT_S:
                return
        self.store.event_applier.apply(attempt.id)
        state = finalize(self.store, attempt.id)
        if state is not None:
            log.info("attempt %s ended: its run is %s", attempt.id, state.value)

    def _apply_requests(self) -> None:
        """Apply users' requests that need no process, as transitions."""
        for run in self._runs.runs(ACTIVE | {RunState.QUEUED, RunState.PAUSED}):
            self._isolation.do(run.id, "applying its requests", partial(self._apply_request, run))

    def _apply_request(self, run: RunRow) -> None:
        state, desired = RunState(run.state), Desired(run.desired)
        new = snapshot.transition_for_request(state, desired)
        if new is not None:
            cause = "resume" if new is RunState.QUEUED else desired.value
            self._transition(run, state, new, cause, request_message(self.store, run))
        elif state is RunState.RUNNING and self._over_time_limit(run):
            limit = run.spec["time_limit_s"]
            self._transition(run, state, RunState.STOPPING, TIME_LIMIT, f"its limit is {limit:g} s")

    def _transition(
        self, run: RunRow, old: RunState, new: RunState, cause: str, message: str | None = None
    ) -> None:
        self.store.transitions.apply(
            run.id,
            old=old,
            new=new,
            attempt=run.attempt,
            cause=cause,
            message=message,
            actor="dispatcher",
        )

    def _over_time_limit(self, run: RunRow) -> bool:
        limit = run.spec.get("time_limit_s")
        if limit is None:
            return False
        attempt = self.store.attempts.get(f"{run.id}-{run.attempt}")
        heartbeat = self.heartbeats.of(attempt.id)
        elapsed = heartbeat.elapsed_s
        if elapsed is None:
            # No heartbeat yet. Times in the database jump with the machine's clock.
            elapsed = self.heartbeats.now() - heartbeat.first_known
        return bool(elapsed > limit)

    def _reconcile(self, attempts: list[Attempt], members: dict[str, Member]) -> None:
        runs = {run.id: run for run in self._runs.runs(ACTIVE)}
        seen: list[rc.OpenAttempt] = []
        unclear: set[str] = set()

        def observe(attempt: Attempt) -> None:
            run = runs.get(attempt.run_id)
            seen.append(snapshot.open_attempt(attempt, run, members, self.heartbeats))

        for attempt in attempts:
            if not self._isolation.do(
                attempt.run_id, "reading its attempt", partial(observe, attempt)
            ):
                # It is known, so it is no orphan; leave it alone until its state is clear.
                unclear.add(attempt.id)
        actions = rc.reconcile(
            seen,
            [member.seen(but=unclear) for member in members.values()],
            self._timeouts,
            membership_known=self._cluster.membership_known,
        )
        by_id = {attempt.id: attempt for attempt in attempts}
        for action in actions:
            act = partial(self._act, action, by_id.get(action.attempt_id), members)
            self._isolation.do(run_of(action.attempt_id), "acting on its attempt", act)

    def _act(self, action: rc.Action, attempt: Attempt | None, members: dict[str, Member]) -> None:
        match action:
            case rc.StopAttempt():
                self._launcher.stop(action)
            case rc.Launch() if attempt is not None:
                self._launcher.launch(self.store.runs.get(attempt.run_id), attempt)
            case rc.Adopt() if attempt is not None:
                log.info("attempt %s is running: adopted", attempt.id)
                self.store.attempts.update(attempt.id, dispatched_at=self.store.clock())
            case rc.MarkLost() if attempt is not None:
                log.warning("attempt %s is lost: %s", attempt.id, action.message)
                note = self._launcher.synthetic_exit(action.cause, action.message, action.node)
                self._launcher.record_exit(attempt.id, note)
                self._nodes.note_end()
            case rc.RecordExit() if attempt is not None:
                self._launcher.record_exit(attempt.id, snapshot.listed_exit(attempt, members))
                self._nodes.note_end()
            case rc.CloseAttempt() if attempt is not None:
                self.store.attempts.close(attempt.id)
            case _:
                pass

    def _start_waiting(self, attempts: list[Attempt], members: dict[str, Member]) -> None:
        waiting = self._runs.waiting()
        if not waiting:
            self._order = ()
            return
        out = excluded(self.store.nodes.notes())
        decided = plan(
            waiting,
            snapshot.active(attempts, self._runs.runs(ACTIVE), members, self.heartbeats),
            [m.as_node(excluded=name in out) for name, m in members.items()],
        )
        self._order = decided.order
        queued = {run.id: run for run in self._runs.runs({RunState.QUEUED})}
        for start in decided.starts:
            begin = partial(self._launcher.begin, queued[start.run_id], start.placement)
            self._isolation.do(start.run_id, "starting it", begin)
        reasons = decided.reasons
        if not self._cluster.has_no_gpus and not any(m.usable for m in members.values()):
            reasons = dict.fromkeys(reasons, self._why_no_cluster())
        self.store.runs.set_pending_reasons(
            {i: why for i, why in reasons.items() if queued[i].pending_reason != why}
        )

    def _why_no_cluster(self) -> str:
        state, message = self._cluster.state()
        why = "waits for the cluster" + (" to start" if state == "starting" else "")
        return f"{why} ({message})" if message else why
