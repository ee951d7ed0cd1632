"""The real server's parts, without its threads: killed between any two writes, and started again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lehr.app.presenters import Presenter
from lehr.app.presenters.cluster import ClusterPresenter
from lehr.app.services.context import Context
from lehr.cluster.dispatcher import TICK_S, Dispatcher
from lehr.errors import LehrError, StoreUnavailable
from lehr.store import Store
from simulation.bridge import Bridge
from simulation.power import DatabaseDisk, Disk
from simulation.sim_store import database_disks, discard, killed_copy, open_store

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")
EPOCH = 1_760_000_000.0
IDLE_S = 300.0  # Longest time between two ticks. In reality it is 10 s; see ``Watch.overlooked``.


class Killed(BaseException):
    """The server's process ends here."""


class Down(Exception):
    """The server does not answer."""


class Beside:
    """Makes the choices of campaigns some time later, unless the server has ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"choices {world.seed}")

    def submit(self, choose: Callable[..., T], *asked: Any) -> Future[T]:
        future, server = Future[T](), self.world.server
        generation = server.generation

        def made() -> None:
            if generation == server.generation:
                with suppress(Down):
                    server.call(lambda: future.set_result(choose(*asked)))

        self.world.after(self.rng.choice([0.1, 1.0, 20.0]), "choice", made)
        return future


class Server:
    """One server after another, on one home."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.home = folder / "home-0"
        self.store: Store
        self.dispatcher: Dispatcher
        self.context: Context  # What the services of the current generation use.
        self.bridge: Bridge
        self.up = False
        self.generation = 0
        self.clock_jump_s = 0.0
        self.kill_in: int | None = None
        """Kill points until the server is killed; None: it is not going to be."""
        self.power_cut = False  # Whether that kill is a power cut of its machine.
        self.disk_full = False  # Whether half of its transactions fail.
        self.disk = Disk()
        self.databases: list[DatabaseDisk] = []
        self.inside = False
        self._tick_due: float | None = None
        self._last_tick = 0.0
        self._nobody: threading.Thread = threading.Thread()

    # -------------------------------------------------------------------------- start and kill

    def start(self) -> None:
        self.generation += 1
        self.inside = True
        try:
            self.store = open_store(self.home, self.clock)
            self.databases = database_disks(self.store)
            self.dispatcher = Dispatcher(
                self.store,
                self.home,
                ray_address="simulated",
                server_url="http://server",
                make_bridge=self._make_bridge,
                clock=lambda: self.world.timeline.now,
            )
            self._nobody = self.dispatcher._thread
            self.context = Context(
                store=self.store,
                presenter=Presenter(self.store, nodes=self.dispatcher.nodes),
                dispatcher=self.dispatcher,
                cluster_views=ClusterPresenter(
                    self.store, self.dispatcher.cluster, self.dispatcher.queue_order, embedded=False
                ),
                home=self.home,
                one_machine=False,
            )
            self.dispatcher.enqueue_all()
        finally:
            self.inside = False
        self.up = True
        self.world.note(f"server: generation {self.generation}")
        self.world.watch.watch_server()
        self.bridge.start()
        self.dispatcher.wake()
        self._plan_tick()

    def _make_bridge(self, home: Path, **options: Any) -> Bridge:
        self.bridge = Bridge(self.world, self.generation, **options)
        return self.bridge

    def clock(self) -> float:
        return EPOCH + self.world.timeline.now + self.clock_jump_s

    def reached(self, name: str) -> None:
        """Pass a kill point."""
        if not self.inside:
            return
        refuses = self.disk_full and self.up and name.endswith(": before commit")
        if refuses and self.world.rng.random() < 0.5:
            self.world.count("refused transactions")
            raise StoreUnavailable("The disk is full.")
        if self.kill_in is None:
            return
        self.kill_in -= 1
        if self.kill_in <= 0:
            self.kill_in = None
            self.world.note(f"server: killed at {name}")
            raise Killed(name)

    def die(self) -> None:
        """Leave the home as a killed process does, and start another server on it later."""
        self.world.count("kills")
        lose = self._lose if self.power_cut else None
        self.power_cut = False
        self._gone()
        self.home = killed_copy(self.store, self.folder / f"home-{self.generation}", lose)
        self.world.after(self.world.rng.choice([0.5, 5.0, 20.0, 120.0]), "server", self.start)

    def _lose(self, home: Path) -> None:
        """Take from the home what its machine had not flushed when it lost power."""
        rng = self.world.rng
        self.world.count("power cuts")
        self.world.watch.power_is_cut()
        files = self.disk.cut(home / "replica", rng)
        lost = [one.path.name for one in self.databases if one.cut(home, rng)]
        self.world.counts["files cut by power cuts"] += files
        self.world.counts["logs cut by power cuts"] += len(lost)
        self.world.note(f"server: power lost; cut: {files} files, {lost}")

    def restart(self) -> None:
        """End it in order, and start another one."""
        if not self.up:
            return
        if self._enter(self.dispatcher.stop) is Down:
            return
        self._gone()
        self.store.close()
        self.world.note("server: ended in order")
        self.world.after(self.world.rng.choice([1.0, 10.0]), "server", self.start)

    def _gone(self) -> None:
        self.up = False
        self.kill_in = None
        self.power_cut = False
        self.bridge.die()
        self.world.disturb()

    def close(self) -> None:
        if self.up:
            discard(self.store)

    # ------------------------------------------------------------------------------- calls

    def call(self, act: Callable[[], T]) -> T:
        """Call the server. Raises Down if it does not answer, and an error that it answers with."""
        if not self.up:
            raise Down
        found = self._enter(act)
        if found is Down:
            raise Down
        return found  # type: ignore[return-value]

    def heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Answer a heartbeat as the API does: from memory where that suffices."""
        found = self.dispatcher.heartbeat_from_memory(attempt_id, payload)
        return found or self.dispatcher.on_heartbeat(attempt_id, payload)

    def _enter(self, act: Callable[[], T]) -> T | type[Down]:
        assert not self.inside, "one call at a time"
        if self.power_cut:
            self.world.watch.about_to_call()
        self.inside = True
        try:
            found = act()
        except Killed:
            self.inside = False
            self.die()
            return Down
        except LehrError:
            self.world.watch.after_call()
            raise
        except Exception as error:
            self.world.watch.fail("internal", f"a call of the server raised {error!r}", error)
            return Down
        finally:
            self.inside = False
        self.world.watch.after_call()
        self._plan_tick()
        return found

    # ------------------------------------------------------------------------------- ticks

    def _plan_tick(self) -> None:
        """Plan the tick for which the dispatcher's alarm is set."""
        timeline = self.world.timeline
        due = min(self.dispatcher.alarm.due, self._last_tick + IDLE_S)
        at = max(due, timeline.now, self._last_tick + self.world.tick_gap_s)
        if not self.up or (self._tick_due is not None and timeline.now <= self._tick_due <= at):
            return
        self._tick_due = at
        generation = self.generation
        self.world.after(at - timeline.now, "tick", lambda: self._tick_if(generation, at))

    def _tick_if(self, generation: int, at: float) -> None:
        if self.up and generation == self.generation and self._tick_due == at:
            self._tick_due = None
            self.tick()

    def tick(self) -> None:
        self._last_tick = self.world.timeline.now
        self.world.count("ticks")

        def act() -> None:
            # The dispatcher does not wake itself for changes that its own thread makes.
            self.dispatcher._thread = threading.current_thread()
            try:
                self.dispatcher.tick()
            finally:
                self.dispatcher._thread = self._nobody

        try:
            found = self._enter(act)
        except StoreUnavailable:
            # As the dispatcher's loop does.
            self.world.count("failed ticks")
            self.dispatcher.alarm.within(TICK_S)
            self._plan_tick()
            return
        except LehrError as error:
            self.world.watch.fail("internal", f"a tick raised {error!r}", error)
            return
        if found is not Down:
            self.world.watch.after_tick()
