"""The invariants of what trains: nothing trains that no run wants, or without the rest of its gang.

Each is a condition that may hold for some time only. After each event the parts that it touched are
looked at, and those on which a condition holds; once a minute all of them, in case a cause touches
none, as when a node comes near its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.control.lifecycle import Desired, RunState
from lehr.control.reconcile import Timeouts
from lehr.store.tables import RunRow
from simulation.part import Part

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.training import Training
    from simulation.world import World

SLACK_S = 90.0  # For reports, ticks and shippers that come more rarely than in reality.
LIMITS = Timeouts()


@dataclass(frozen=True)
class Condition:
    """Something that may hold for so long, after the last fault that explains it."""

    name: str
    invariant: str
    text: str
    limit_s: float
    nodes: tuple[Node, ...]


class LivingWatch:
    def __init__(self, world: World) -> None:
        self.world = world
        self._touched: dict[Part, None] = {}  # In the order of the history, unlike a set.
        self._runs: set[str] = set()
        """Runs whose rows have changed since the last tick, which reads them."""
        self._since: dict[Part, dict[str, float]] = {}
        """When each condition that holds was first seen."""

    def touch(self, parts: Iterable[Part]) -> None:
        """Look at these parts after this event."""
        self._touched.update(dict.fromkeys(parts))

    def touch_training(self, training: Training) -> None:
        self.touch(training.parts.values())

    def touch_node(self, node: Node) -> None:
        for part in node.entries.values():
            self.touch_training(part.training)

    def run_changed(self, run_id: str) -> None:
        self._runs.add(run_id)

    def after_tick(self) -> None:
        """Look at the parts of the runs that the tick has read again."""
        runs, self._runs = self._runs, set()
        if runs:
            self.touch(part for part in self._training() if part.training.run_id in runs)

    def after_event(self) -> None:
        """Look at what the event touched, and at what is not as it should be."""
        if not self._touched and not self._since:
            return
        touched, self._touched = self._touched, {}
        self._look([*dict.fromkeys([*touched, *self._since])])

    def look_at_all(self) -> None:
        self._look([*dict.fromkeys([*self._training(), *self._since])])

    def _training(self) -> Iterator[Part]:
        for node in self.world.nodes:
            for part in node.entries.values():
                if part.trainer:
                    yield part

    def _look(self, parts: list[Part]) -> None:
        server = self.world.server
        if not server.up or not server.bridge.session:
            self._since.clear()
            return
        rows = server.dispatcher._loader._runs._rows
        for part in parts:
            before = self._since.pop(part, {})
            holds = list(self._conditions(part, rows))
            if not holds:
                continue
            now = self.world.timeline.now
            since = self._since[part] = {one.name: before.get(one.name, now) for one in holds}
            for one in holds:
                if self._overdue(one, since[one.name]):
                    self.world.watch.fail(one.invariant, one.text)

    def _overdue(self, condition: Condition, since: float) -> bool:
        """Return whether it has held for too long, without a fault that explains it."""
        disturbed = (node.disturbed_at for node in condition.nodes)
        quiet_since = max(since, self.world.disturbed_at, *disturbed)
        slow = 600.0 if self.world.plan.slow else 0.0
        lost = 300.0 if self.world.plan.loss else 0.0
        return self.world.timeline.now - quiet_since > condition.limit_s + SLACK_S + slow + lost

    def _conditions(self, part: Part, rows: dict[str, RunRow]) -> Iterator[Condition]:
        node = part.node
        on_its_node = node.entries.get(part.attempt_id) is part
        if not on_its_node or not part.trainer or not part.shim or node.in_trouble:
            return
        run = rows.get(part.training.run_id)
        current = run is not None and run.attempt == part.training.number
        state = RunState(run.state) if run is not None and current else None
        name = f"{part.attempt_id} on {node.name}"
        if run is None or state is None or not state.active:
            words = f"{name} still trains, and no run wants it"
            yield Condition("over", "left_over", words, LIMITS.cancel_kill_s + 30, (node,))
        elif state is RunState.STOPPING:
            ends = run.desired in {Desired.CANCEL.value, Desired.PRUNE.value}
            limit = LIMITS.cancel_kill_s if ends else LIMITS.pause_kill_s
            words = f"{name} was asked to stop ({run.desired}), and still trains"
            kind = "ends" if ends else "saves"
            yield Condition(kind, "requests", words, limit + 16, (node,))
        elif self.world.node_ends.near(node.name):
            words = f"{name} still trains near the end of its node"
            yield Condition("near", "node_end", words, LIMITS.pause_kill_s + 16, (node,))
        yield from self._gang(part)

    def _gang(self, part: Part) -> Iterator[Condition]:
        training = part.training
        gone = [one for one in training.parts.values() if not one.trainer]
        nodes = tuple(one.node for one in training.parts.values())
        if not gone or any(node.hangs or node.disk_full for node in nodes):
            return
        if any(one.shim is False and one.node.on and one.exit is None for one in gone):
            return  # Its agent is about to end it.
        well = all(one.code == 0 for one in gone)
        limit = LIMITS.gang_drain_s + 60 if well else LIMITS.lease_s + 100
        words = f"{part.attempt_id} lives on {part.node.name} without its other parts"
        yield Condition(f"gang {well}", "gang", words, limit, nodes)
