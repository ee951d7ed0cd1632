"""Maintenance windows: people declare and remove them, and nothing trains on their nodes meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.services import maintenance

if TYPE_CHECKING:
    from lehr.control.queue import StartRun
    from simulation.world import World

DAY_S = 86_400.0


@dataclass(frozen=True)
class Declared:
    """A window whose declaration was confirmed, by the clock of the server."""

    node: str | None
    begin: float
    duration_s: float
    daily: bool

    def open(self, now: float) -> bool:
        since = now - self.begin
        return 0.0 <= (since % DAY_S if self.daily and since >= 0.0 else since) < self.duration_s

    def covers(self, node: str) -> bool:
        return self.node in {None, node}


class Windows:
    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[int, Declared] = {}
        """By number."""

    def start(self) -> None:
        if self.world.plan.windows:
            self._later()

    def _later(self) -> None:
        rng = self.world.rng
        self.world.after(rng.expovariate(self.world.plan.windows / 3600.0), "window", self._act)

    def _act(self) -> None:
        if self.world.people.active:
            act = self._remove if self.known and self.world.rng.random() < 0.3 else self._declare
            self.world.people.attempt(act)
            self._later()

    def _declare(self) -> None:
        rng, server = self.world.rng, self.world.server
        duration_s = rng.uniform(300.0, 5400.0)
        declared = Declared(
            node=rng.choice([None, *(one.name for one in self.world.nodes)]),
            # Some have begun already.
            begin=server.clock() + rng.uniform(-duration_s / 2, 3600.0),
            duration_s=duration_s,
            daily=rng.random() < 0.3,
        )
        made = server.call(
            lambda: maintenance.add_window(
                server.context,
                starts_at=declared.begin,
                duration_s=declared.duration_s,
                node=declared.node,
                repeat="daily" if declared.daily else None,
                note="",
            )
        )
        self.known[made.id] = declared
        self.world.note(f"person: window {made.id} of {declared.node or 'all nodes'}")
        self.world.count("windows")

    def _remove(self) -> None:
        number = self.world.rng.choice(sorted(self.known))
        del self.known[number]  # Whether the server answers or not: it may have removed it.
        self.world.note(f"person: window {number} is removed")
        server = self.world.server
        server.call(lambda: maintenance.remove_window(server.context, number))

    def settle(self) -> None:
        """Remove all, so that what waits can end."""
        self.known.clear()
        server = self.world.server
        for row in server.call(server.store.maintenance.all):
            self.world.people.attempt(
                lambda number=row.id: server.call(
                    lambda: maintenance.remove_window(server.context, number)
                )
            )

    # ------------------------------------------------------------------------- the invariant

    def open_on(self, node: str) -> bool:
        now = self.world.server.clock()
        return any(one.covers(node) and one.open(now) for one in self.known.values())

    def any_open(self) -> bool:
        now = self.world.server.clock()
        return any(one.open(now) for one in self.known.values())

    def wrong_start(self, start: StartRun) -> str | None:
        """Return what is wrong with a start, if anything."""
        closed = [share.node for share in start.placement if self.open_on(share.node)]
        if closed:
            return f"{start.run_id} starts on {closed[0]}, whose maintenance window is open"
        return None
