"""The dispatcher: one loop that observes, decides and acts. Every action is fenced.

A tick records what has arrived, loads one snapshot, gets the actions that follow from it
(``lehr.control.step``, a pure function) and applies them. What is remembered between ticks may be
lost (docs/contributing/tick.md lists it), so a restarted server just continues. The loop wakes up
on every change, and when a time limit runs out (``lehr.control.due``).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lehr.base import home as homes
from lehr.base.access import current_actor
from lehr.base.signed_tokens import AttemptTokens
from lehr.cluster.attempt_protocol import AttemptProtocol
from lehr.cluster.bridge_client import BridgeClient
from lehr.cluster.executor import Executor, give_up
from lehr.cluster.exits import EXCLUDED, excluded
from lehr.cluster.heartbeats import GATHER_S, Alarm, HeartbeatTable
from lehr.cluster.inbox import Inbox
from lehr.cluster.isolation import Isolation
from lehr.cluster.known_nodes import KnownNodes
from lehr.cluster.launcher import Launcher, LaunchSettings
from lehr.cluster.loader import SnapshotLoader
from lehr.cluster.membership import Cluster, Member
from lehr.control.due import due_in_s
from lehr.control.liveness import SILENT_S, UNREACHABLE_S, Liveness
from lehr.control.reconcile import Timeouts
from lehr.control.resources import Need, Node, can_ever_place
from lehr.control.step import settled, step
from lehr.errors import NotFound, StoreUnavailable, did_you_mean
from lehr.node import gpu_inventory
from lehr.specs.run import Resources
from lehr.store import Change, Store
from lehr.store.secret_store import SecretStore
from lehr.store.tables import Attempt

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Time until the next tick while something is not settled: new metrics, an action, a fault."""
IDLE_S = 10.0  # Time until the next tick if nothing happens and no limit runs out.
DEFAULT_TIMEOUTS = Timeouts()
TRAINER_VARIABLE = "LEHR_TRAINER_MODULE"  # Tests replace the trainer by something smaller.


class Dispatcher:
    """Starts queued runs, watches running ones, finalizes ended ones.

    Runs in a thread of the server's process. ``stop`` leaves every training running.

    Args:
        ray_address: an existing cluster, or None for an embedded Ray head.
        gpus: GPUs of the embedded head; logical ones on a machine without any. None: see
            ``gpu_inventory.gpus_to_offer``.
        server_url: where shippers reach this server.
        trainer: the module that trains, or a script ending in ``.py``.
        node: the embedded head's node name; by default the host's.
        timeouts: time limits for the steps of an attempt's life.
        make_bridge: makes the connection to the agents; a simulation has its own.
        clock: seconds that never go back.
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
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        make_bridge: Callable[..., BridgeClient] = BridgeClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.heartbeats = HeartbeatTable(clock)
        self.alarm = Alarm(clock)  # When the next tick is due.
        self.handlers = AttemptProtocol(store, self.heartbeats, self.wake)
        name = node or socket.gethostname().partition(".")[0]
        expected: dict[str, list[dict[str, Any]]] = {}
        offered = 0
        if ray_address is None:
            offered = gpu_inventory.gpus_to_offer(gpus, home)
            # Without real ones, logical ones were requested.
            gpus_here = gpu_inventory.node_gpus(offered) or gpu_inventory.logical_gpus(offered)
            expected[name] = [gpu.to_json() for gpu in gpus_here]
        self._embedded = ray_address is None
        self._known_nodes = KnownNodes(home, ray_address=ray_address, own=expected, clock=clock)
        self.cluster = Cluster(expected, self._known_nodes.members())
        self._bridge = make_bridge(
            home,
            ray_address=ray_address,
            gpus=offered,
            node=name,
            server_url=server_url,
            runs_dir=homes.runs_dir(home),
            on_news=self._on_news,
            on_state=self._bridge_state,
        )
        self._launcher = Launcher(
            store,
            self.cluster,
            self._bridge,
            self.heartbeats,
            AttemptTokens(home),
            LaunchSettings(
                runs_dir=homes.runs_dir(home),
                data_dir=homes.data_dir(home),
                secrets=SecretStore(home),
                server_url=server_url,
                own_node=name if ray_address is None else None,
                trainer=trainer or os.environ.get(TRAINER_VARIABLE) or "lehr_trainer",
            ),
            self.alarm,
        )
        isolation = self._isolation = Isolation(partial(give_up, store), self.heartbeats.now)
        self._inbox = Inbox(store, self._launcher, self.heartbeats, isolation)
        self._loader = SnapshotLoader(
            store, self.cluster, self.heartbeats, isolation, homes.runs_dir(home), timeouts
        )
        self._executor = Executor(
            store, self.cluster, self._launcher, isolation, self._loader.note_end
        )
        self._announced = _summary(self.cluster.members())
        self._ticked_at = self.heartbeats.now()
        self._stopping = threading.Event()
        self._unsubscribe = store.subscribe(self._changed)
        self._thread = threading.Thread(target=self._loop, name="dispatcher", daemon=True)

    # --- called by the server ----------------------------------------------------------------

    def start(self) -> None:
        """Start the loop. Returns at once; Ray starts in the background."""
        self.enqueue_all()
        self.wake()
        self._thread.start()
        self._bridge.start()

    def enqueue_all(self) -> None:
        """Look at everything that has not ended with the next tick, as a new server must."""
        self._inbox.enqueue_all()
        self._loader.enqueue_all()

    def stop(self) -> None:
        """Stop the loop. Trainings, agents and the Ray head continue."""
        self._stopping.set()
        self.alarm.within(0.0)
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._bridge.started:
            self._bridge.stop()
        self._unsubscribe()
        self._known_nodes.note(self.cluster.members(), self._left, now=True)
        try:
            self._inbox.write_heartbeats()
        except StoreUnavailable as error:  # The next server gets new ones.
            log.warning("the last heartbeats could not be written: %s", error)

    def wake(self) -> None:
        self.alarm.within(GATHER_S)

    def on_heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self.handlers.on_heartbeat(attempt_id, payload)

    def heartbeat_from_memory(
        self, attempt_id: str, payload: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Do what ``on_heartbeat`` does without reading the store; None if that is impossible."""
        return self.handlers.heartbeat_from_memory(attempt_id, payload)

    def on_exit(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record the exit of an attempt. The answer lists the bytes that are still missing."""
        answer = self.handlers.on_exit(attempt_id, payload)
        self._inbox.unread.add([attempt_id])
        self._loader.note_end(attempt_id)
        self.wake()
        return answer

    def queue_order(self) -> tuple[str, ...]:
        return self._executor.queue_order

    def exclude_node(self, name: str, reason: str) -> None:
        """Place no new runs on the node. Its running runs continue.

        Raises:
            NotFound: the cluster has no such node.
        """
        self.check_node(name)
        self.store.nodes.note(name, EXCLUDED, reason, actor=current_actor())
        self.wake()

    def readmit_node(self, name: str) -> None:
        """Place runs on the node again, and clear its failure count.

        Raises:
            NotFound: the cluster has no such node.
        """
        self.check_node(name)
        who = current_actor()
        self.store.nodes.note(name, "readmitted", f"readmitted by {who}", actor=who)
        self._loader.forget_waiting()
        self.wake()

    def _left(self) -> set[str]:
        out = excluded(self.store.nodes.notes())
        members = self.cluster.members().values()
        return {one.name for one in members if one.has_left(out.get(one.name))}

    def check_node(self, name: str) -> None:
        """Raise NotFound if the cluster has no such node."""
        known = {*self.cluster.members(), *self.store.nodes.notes()}
        if name not in known:
            raise NotFound(
                f"The cluster has no node {name[:200]!r}.",
                hint=did_you_mean(name, known) or f"It has: {', '.join(sorted(known)) or 'none'}.",
            )

    def can_ever_place(self, resources: Resources) -> str | None:
        """Return why the cluster could never hold it; None if it could, or if that is unknown.

        A GPU type that no node has is not rejected but warned of (``Need.unmet``): a node of that
        type may join. More GPUs than the cluster has are an error in the spec.
        """
        nodes = self.nodes()
        if not self._embedded and not nodes:
            return None
        return can_ever_place(Need(resources.gpus, resources.nodes), nodes)

    def nodes(self) -> list[Node]:
        """Return all nodes, also those that do not answer or have left."""
        return [member.as_node() for member in self.cluster.members().values()]

    def heartbeat_at(self, attempt_id: str) -> float | None:
        return self.heartbeats.seen(attempt_id).at

    def since_tick_s(self) -> float:
        """Return the seconds since the last tick that succeeded, or since the start."""
        return self.heartbeats.now() - self._ticked_at

    def liveness(self, attempts: Iterable[Attempt] | None = None) -> dict[str, Liveness]:
        """Return the liveness by run id, for runs that have a living attempt.

        ``attempts``: only of these; by default of all open ones.
        """
        return {
            attempt.run_id: self.heartbeats.liveness(
                attempt.id, UNREACHABLE_S if attempt.placement else SILENT_S
            )
            for attempt in (self.store.attempts.list_open() if attempts is None else attempts)
            if attempt.exited_at is None and attempt.dispatched_at is not None
        }

    # -------------------------------------------------------------------------------- news

    def _changed(self, change: Change) -> None:
        self._inbox.changed(change)
        self._loader.changed(change)
        if (
            change.kind == "run"
            and not change.progress
            and threading.current_thread() is not self._thread
        ):
            self.wake()  # The tick itself decides whether its changes need another tick.
        elif change.kind in {"metrics", "sweep", "rollout", "cluster"}:
            self.alarm.within(TICK_S)

    def _on_news(self, news: dict[str, Any]) -> None:
        if not self.cluster.on_news(news):
            return
        summary = _summary(self.cluster.members())
        if summary != self._announced:
            self._announced = summary
            self.store.notify(Change("cluster", ""))
        self.wake()

    def _bridge_state(self, state: Any, message: str | None) -> None:
        if self.cluster.set_state(state, message):
            log.info("ray is %s%s", state, f": {message}" if message else "")
            self.store.notify(Change("cluster", ""))
            self.wake()

    # -------------------------------------------------------------------------------- loop

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self.alarm.wait()
            if self._stopping.is_set():
                return
            try:
                self.tick()
            except Exception:
                # The next tick starts from the store again; a lasting error shows in the log.
                log.exception("a tick failed")
                self._stopping.wait(TICK_S)
                self.alarm.within(TICK_S)
            self.alarm.within(IDLE_S)

    def tick(self) -> bool:
        """Record what arrived, decide on one snapshot, act. Set the alarm for the next tick.

        Return whether the record has changed, so that more may follow now.
        """
        self.alarm.clear()
        try:
            self._inbox.record()
            snapshot = self._loader.load(self._inbox.unread.seen())
            self.heartbeats.follow(snapshot.attempts, snapshot.unreadable_attempts)
            self.handlers.publish(self._loader.living, self._loader.senders)
            actions = step(snapshot)
            applied = self._executor.apply(actions)
        except BaseException:
            # Some changes that this tick has read were not decided on. Read all groups again.
            self._loader.enqueue_all()
            raise
        self._ticked_at = self.heartbeats.now()
        self._known_nodes.note(self.cluster.members(), self._left)
        for subject in (*applied.changed, *applied.failed):
            self._loader.enqueue(subject)
        if applied.changed:
            self.alarm.within(GATHER_S)
        elif self._isolation.failing or any(not settled(action) for action in actions):
            self.alarm.within(TICK_S)
        if (due := due_in_s(snapshot)) is not None:
            self.alarm.within(due)
        return bool(applied.changed)


def _summary(members: Mapping[str, Member]) -> list[tuple[Any, ...]]:
    """Return the facts of the cluster whose changes are announced to subscribers."""
    return [(m.name, m.usable, m.error, len(m.gpus)) for m in members.values()]
