"""Ends of nodes: people set and remove them, and nothing trains on a node that is near its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.app.services.nodes import set_node_until
from lehr.control.availability import MARGIN_S

if TYPE_CHECKING:
    from lehr.control.queue import StartRun
    from simulation.world import World


class NodeEnds:
    def __init__(self, world: World) -> None:
        self.world = world
        self.until: dict[str, float] = {}
        """By node, by the clock of the server: ends that were confirmed."""

    def start(self) -> None:
        if self.world.plan.node_ends:
            self._later()

    def _later(self) -> None:
        rng = self.world.rng
        self.world.after(rng.expovariate(self.world.plan.node_ends / 3600.0), "node end", self._act)

    def _act(self) -> None:
        if self.world.people.active:
            rng = self.world.rng
            if self.until and rng.random() < 0.5:
                node, left_s = rng.choice(sorted(self.until)), None
            else:
                node = rng.choice([one.name for one in self.world.nodes])
                # Half of them are near at once.
                left_s = rng.uniform(1.0, MARGIN_S + rng.choice([0.0, 1800.0]))
            self.world.people.attempt(lambda: self._set(node, left_s))
            self._later()

    def _set(self, node: str, left_s: float | None) -> None:
        server = self.world.server
        until = None if left_s is None else server.clock() + left_s
        self.world.note(f"person: {node} is available until {until}")
        self.until.pop(node, None)  # Whether the server answers or not: it may have recorded it.
        server.call(lambda: set_node_until(server.context, node, until))
        if until is not None:
            self.until[node] = until
            self.world.count("node ends")

    def settle(self) -> None:
        """Remove all, so that what waits can end."""
        server = self.world.server
        for node in server.call(server.store.nodes.until):
            self.world.people.attempt(lambda node=node: self._set(node, None))

    # ------------------------------------------------------------------------- the invariant

    def near(self, node: str) -> bool:
        return self.until.get(node, float("inf")) - MARGIN_S <= self.world.server.clock()

    def any_near(self) -> bool:
        return any(map(self.near, self.until))

    def wrong_start(self, start: StartRun) -> str | None:
        """Return what is wrong with a start, if anything."""
        near = [share.node for share in start.placement if self.near(share.node)]
        return f"{start.run_id} starts on {near[0]}, which is near its end" if near else None
