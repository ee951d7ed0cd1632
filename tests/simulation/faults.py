"""Faults: each kind comes at its own rate, and goes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.node import Node
from simulation.plan import MACHINE_FAULTS, NODE_FAULTS, SERVER_FAULTS

if TYPE_CHECKING:
    from simulation.world import World

LENGTHS = (5.0, 20.0, 50.0, 90.0, 300.0, 1800.0)


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        self.active = True

    def start(self) -> None:
        for kind in (*NODE_FAULTS, *SERVER_FAULTS, *MACHINE_FAULTS):
            rate = self.world.plan.faults.get(kind, 0.0)
            if kind in NODE_FAULTS:
                rate *= 1 + len(self.world.plan.nodes) / 8
            if rate:
                self._later(kind, rate)

    def _later(self, kind: str, rate: float) -> None:
        def act() -> None:
            if self.active:
                self.cause(kind)
                self._later(kind, rate)

        self.world.after(self.world.rng.expovariate(rate / 3600.0), "fault", act)

    def cause(self, kind: str) -> None:
        self.world.count(f"fault {kind}")
        if kind in {*SERVER_FAULTS, *MACHINE_FAULTS}:
            self.world.note(f"fault: {kind}")
            getattr(self, f"_{kind}")()
        else:
            node = self.world.rng.choice([node for node in self.world.nodes if node.joined])
            self.world.note(f"fault: {kind} {node.name}")
            getattr(self, f"_{kind}")(node)

    def _for_a_while(self, what: str, end: Callable[[], object]) -> None:
        self.world.after(self.world.rng.choice(LENGTHS), f"end of {what}", end)

    # ------------------------------------------------------------------------------ the server

    def _server_kill(self) -> None:
        """Kill it between two of the next writes."""
        self.world.server.kill_in = self.world.rng.choice([1, 2, 3, 5, 8, 15, 40])

    def _power_cut(self) -> None:
        """Cut the power of its machine between two of the next writes."""
        self._server_kill()
        self.world.server.power_cut = True

    def _server_disk_full(self) -> None:
        """Let half of its transactions fail for a while."""
        self.world.server.disk_full = True
        self.world.disturb()

        def heal() -> None:
            self.world.server.disk_full = False
            self.world.disturb()

        self._for_a_while("disk_full of the server", heal)

    def _server_restart(self) -> None:
        self.world.server.restart()

    def _bridge_restart(self) -> None:
        if self.world.server.up:
            self.world.server.bridge.restart()

    def _server_clock_jump(self) -> None:
        server = self.world.server
        server.clock_jump_s += self.world.rng.choice([-7200.0, -5.0, 5.0, 7200.0])
        if server.up:
            # A real server ticks every 10 s, and sees then what the new time means.
            server.dispatcher.wake()

    # ------------------------------------------------------------------------------- a node

    def _power_off(self, node: Node) -> None:
        rng = self.world.rng
        node.power_off()
        if rng.random() < 0.1 and len([n for n in self.world.nodes if n.joined]) > 1:
            node.leave()
            self.world.after(
                rng.uniform(60, 1800), "new node", lambda: self.world.add_node(node.gpus)
            )
            return
        wiped = rng.random() < 0.3
        self._for_a_while("power_off", lambda: node.power_on(wiped=wiped))

    def _hang(self, node: Node) -> None:
        node.hang()
        self._for_a_while("hang", node.unhang)

    def _cut_from_ray(self, node: Node) -> None:
        node.cut_ray()
        self._for_a_while("cut", node.heal_ray)

    def _cut_from_server(self, node: Node) -> None:
        node.server_cuts += 1
        node.disturb()

        def heal() -> None:
            node.server_cuts = max(0, node.server_cuts - 1)
            node.disturb()

        self._for_a_while("cut", heal)

    def _cut_off(self, node: Node) -> None:
        self._cut_from_ray(node)
        self._cut_from_server(node)

    def _clock_jump(self, node: Node) -> None:
        node.clock_jump_s += self.world.rng.choice([-86400.0, -60.0, 1.0, 60.0, 86400.0])

    def _disk_full(self, node: Node) -> None:
        node.disk_full += 1
        node.disturb()

        def heal() -> None:
            node.disk_full = max(0, node.disk_full - 1)
            node.disturb()

        self._for_a_while("disk_full", heal)

    def _agent_restart(self, node: Node) -> None:
        if self.world.rng.random() < 0.5:
            node.agent_dies_in_start = True
        else:
            node.restart_agent()

    def _shim_kill(self, node: Node) -> None:
        living = [part for part in node.parts() if part.shim]
        if living:
            part = self.world.rng.choice(living)
            self.world.note(f"shim of {part.attempt_id} killed")
            part.kill_shim()
            node.disturb()

    def _trainer_kill(self, node: Node) -> None:
        living = [part for part in node.parts() if part.trainer]
        if living:
            self.world.rng.choice(living).trainer_ended(signal=9)

    def _bad_gpu(self, node: Node) -> None:
        node.bad_gpu = True
        node.disturb()
        self._for_a_while("bad_gpu", lambda: setattr(node, "bad_gpu", False))

    # ------------------------------------------------------------------------------ healing

    def heal(self) -> None:
        """End every fault, for good."""
        self.active = False
        self.world.lossy = False
        self.world.server.kill_in = None
        self.world.server.power_cut = self.world.server.disk_full = False
        for node in self.world.nodes:
            if not node.joined:
                continue
            node.bad_gpu = False
            node.agent_dies_in_start = False
            node.disk_full = node.server_cuts = 0
            node.power_on(wiped=False)
            while node.hangs:
                node.unhang()
            while node.ray_cuts:
                node.heal_ray()
            if not node.ray_alive:
                node.heal_ray()
            node.disturb()
