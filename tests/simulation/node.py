"""A node: its agent as ``lehr.node.agent`` works, its GPUs, its disk, and what disturbs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.part import Part

if TYPE_CHECKING:
    from simulation.bridge import NodeThread
    from simulation.world import World

Reply = Callable[[Any, str | None], None]
RAY_LOSES_S = 30.0  # Ray counts a node as dead after this long without contact.
FINALIZE_AGAIN_S = 15.0


class Node:
    def __init__(self, world: World, name: str, gpus: int) -> None:
        self.world = world
        self.name = name
        self.gpus = gpus
        self.joined = True  # False: gone for good, and Ray has forgotten it.
        self.on = True
        self.boot = 1
        self.raylets = 1
        self.ray_alive = True
        self.ray_cuts = 0  # How many faults cut it from Ray now.
        self.server_cuts = 0
        self.hangs = 0
        self.disk_full = 0
        self.bad_gpu = False
        self.clock_jump_s = 0.0
        self.disturbed_at = 0.0
        self.entries: dict[str, Part] = {}  # The folder of attempts on its disk.
        self.disks = 1
        self.agent = Agent(self)
        self.agent_dies_in_start = False
        self._calls_clear_at = 0.0
        self.watcher: NodeThread | None = None  # What reads its list.

    @property
    def ray_id(self) -> str:
        return f"{self.name}.{self.raylets}"

    @property
    def in_trouble(self) -> bool:
        """Return whether the server cannot reach its agent now."""
        return not self.on or not self.ray_alive or self.ray_cuts > 0 or self.hangs > 0

    @property
    def ends_something(self) -> bool:
        """Return whether a part has ended, or is not what it should be."""
        return any(
            not part.delivered and not (part.trainer and part.shim)
            for part in self.entries.values()
        )

    def clock(self) -> float:
        return self.world.server_epoch + self.world.timeline.now + self.clock_jump_s

    def as_member(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ray_id": self.ray_id,
            "address": self.name,
            "gpus": self.gpus,
            "alive": self.ray_alive,
        }

    def holder(self, gpu: int, but: Part | None = None) -> Part | None:
        """Return what holds the lock of the GPU."""
        for part in self.entries.values():
            if part is not but and part.holds and gpu in part.gpus:
                return part
        return None

    def parts(self) -> list[Part]:
        return list(self.entries.values())

    # ------------------------------------------------------------------------ calls by Ray

    def deliver_call(
        self, ray_id: str, verb: str, arguments: tuple[Any, ...], reply: Reply
    ) -> None:
        """Bring a call to the agent, and its answer back."""
        rng, plan = self.world.rng, self.world.plan
        slow = self.world.lossy and rng.random() < plan.slow
        late = rng.uniform(20.0, 120.0) if slow else rng.uniform(0.005, 0.2)
        # Ray keeps the order of a driver's calls to an actor.
        now = self.world.timeline.now
        self._calls_clear_at = max(self._calls_clear_at, now + late)
        late = self._calls_clear_at - now

        def arrive() -> None:
            if ray_id != self.ray_id or not self.ray_alive:
                reply(None, "ActorDiedError: its node is gone")
            elif self.ray_cuts:
                # TCP sends it again. The same pause for all keeps their order.
                self.world.after(5.0, "call waits", arrive)
            else:
                self.agent.put(verb, arguments, back)

        def back(result: Any, error: str | None) -> None:
            slow = self.world.lossy and rng.random() < plan.slow
            late = rng.uniform(20.0, 120.0) if slow else rng.uniform(0.005, 0.1)

            def arrive_back() -> None:
                if ray_id == self.ray_id and self.ray_cuts:
                    self.world.after(5.0, "answer waits", arrive_back)
                elif ray_id == self.ray_id and self.ray_alive:
                    reply(result, error)

            self.world.after(late, f"answer of {self.name}", arrive_back)

        self.world.after(late, f"call of {self.name}", arrive)

    # ------------------------------------------------------------------------------ faults

    def disturb(self) -> None:
        self.disturbed_at = self.world.timeline.now
        self.touch()

    def touch(self) -> None:
        """Note that its list of attempts, or whether it answers, may change."""
        self.world.watch.living.touch_node(self)
        if self.watcher is not None:
            self.watcher.touched()

    def power_off(self) -> None:
        """Lose all processes at once."""
        if not self.on:
            return
        self.on = False
        self.disturb()
        for part in self.parts():
            part.vanish()
        self.agent.die()
        raylets = self.raylets
        self.world.after(
            self.world.rng.uniform(1.0, RAY_LOSES_S),
            f"ray loses {self.name}",
            lambda: self._lost_by_ray(raylets),
        )

    def power_on(self, *, wiped: bool) -> None:
        if self.on or not self.joined:
            return
        self.on = True
        self.boot += 1
        self.disturb()
        if wiped:
            self.wipe()
        self._join_ray()

    def wipe(self) -> None:
        self.disks += 1
        for part in self.parts():
            part.erased = True
        self.entries.clear()
        self.touch()

    def leave(self) -> None:
        """Be gone for good."""
        self.power_off()
        self.joined = False
        for part in self.parts():
            part.erased = True
        self.world.server.bridge.members_changed()

    def cut_ray(self) -> None:
        self.ray_cuts += 1
        self.disturb()
        raylets = self.raylets
        self.world.after(
            RAY_LOSES_S,
            f"ray loses {self.name}",
            lambda: self.ray_cuts and self._lost_by_ray(raylets),
        )

    def heal_ray(self) -> None:
        self.ray_cuts = max(0, self.ray_cuts - 1)
        self.disturb()
        if self.on and not self.ray_cuts and not self.ray_alive:
            self._join_ray()

    def _lost_by_ray(self, raylets: int) -> None:
        """Ray declares the node dead: its raylet ends, and the agent with it."""
        if raylets == self.raylets and self.ray_alive:
            self.ray_alive = False
            self.agent.die()
            self.disturb()
            self.world.server.bridge.members_changed()

    def _join_ray(self) -> None:
        """Join as a new node of Ray, with a new agent."""
        self.raylets += 1
        self.ray_alive = not self.ray_cuts
        self.agent.die()
        self.agent = Agent(self)
        self.disturb()
        self.world.server.bridge.members_changed()

    def hang(self) -> None:
        self.hangs += 1
        self.disturb()

    def unhang(self) -> None:
        self.hangs = max(0, self.hangs - 1)
        self.disturb()
        self.agent.work()

    def restart_agent(self) -> None:
        """The agent is killed; Ray starts it again."""
        if self.on and self.ray_alive:
            self.agent.die()
            self.agent = Agent(self)
            self.disturb()


class Agent:
    """Handles one call after another. What it knows is on the node's disk."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.session = ""
        self.dead = False
        self._calls: deque[tuple[str, tuple[Any, ...], Reply]] = deque()
        self._busy = False
        self._finalized_at: dict[str, float] = {}

    def die(self) -> None:
        """Fail the calls that wait."""
        self.dead = True
        self.node.touch()
        calls, self._calls = self._calls, deque()
        for _, _, reply in calls:
            reply(None, "ActorDiedError: the agent was killed")

    def put(self, verb: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        if self.dead:
            reply(None, "ActorDiedError: the agent was killed")
            return
        self._calls.append((verb, arguments, reply))
        self.work()

    def work(self) -> None:
        if self._busy or not self._calls or self.node.hangs or self.dead:
            return
        self._busy = True
        self.world.after(self.world.rng.uniform(0.002, 0.05), "agent works", self._next)

    def _next(self) -> None:
        self._busy = False
        if self.dead or self.node.hangs or not self._calls:
            return
        verb, arguments, reply = self._calls.popleft()
        try:
            result = getattr(self, verb)(*arguments)
        except Exception as error:
            reply(None, f"{type(error).__name__}: {error}")
        else:
            if self.dead:  # It was killed in the call.
                reply(None, "ActorDiedError: the agent was killed")
            else:
                reply(result, None)
        self.work()

    # ------------------------------------------------------------------------------- calls

    def hello(self, session: str) -> dict[str, Any]:
        self.session = session
        gpus = [
            {"index": index, "name": "simulated GPU", "memory_bytes": None, "uuid": None}
            for index in range(self.node.gpus)
        ]
        found = {"protocol": 2, "cpus": 32, "gpus": gpus, "attempts": self._list()}
        if self.world.storage.on:
            found["runs_folder"] = self.world.storage.disk(self.node)
        return found

    def start(self, session: str, launch: dict[str, Any]) -> str:
        if session != self.session:
            raise RuntimeError(f"session {session} is over")
        attempt_id = str(launch["attempt_id"])
        node = self.node
        if attempt_id in node.entries:
            return "known"
        if node.disk_full:
            raise OSError(f"[Errno 28] No space left on device: {attempt_id}")
        part = Part(node, launch)
        node.entries[attempt_id] = part
        node.touch()
        if node.agent_dies_in_start:
            node.agent_dies_in_start = False
            self.world.note(f"{node.name}: its agent is killed while it starts {attempt_id}")
            node.restart_agent()
            return "started"
        part.start()
        return "started"

    def stop(self, attempt_id: str, stop_level: str, reason: str) -> bool:
        part = self.node.entries.get(attempt_id)
        if part is None or not part.shim:
            return False
        part.request_stop(stop_level, reason)
        return True

    def report(self) -> dict[str, Any]:
        storage = "the disk is full" if self.node.disk_full else None
        return {"attempts": self._list(), "gpus_now": [], "storage": storage}

    def _list(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        entries = self.node.entries
        for attempt_id in sorted(entries):
            part = entries[attempt_id]
            if part.delivered and not part.shim:
                del entries[attempt_id]
                continue
            ended = part.exit
            if not part.shim and not part.registered:
                del entries[attempt_id]
                continue
            if not part.shim:
                self._finalize_orphan(part)
            found[attempt_id] = {
                "state": "live" if ended is None else "ended",
                "gpus": list(part.gpus),
                "exit": ended,
            }
        return found

    def _finalize_orphan(self, part: Part) -> None:
        now = self.world.timeline.now
        if now - self._finalized_at.get(part.attempt_id, -FINALIZE_AGAIN_S) >= FINALIZE_AGAIN_S:
            self._finalized_at[part.attempt_id] = now
            part.finalize_orphan()
