"""The whole simulation of one seed."""

from __future__ import annotations

import gc
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lehr.analysis.laws.question import CampaignTrial, Next, Question
from lehr.cluster import group_loader
from lehr.control import campaign_choice
from lehr.errors import HomeUnusable
from simulation.faults import Faults
from simulation.node import Node
from simulation.node_ends import NodeEnds
from simulation.part import Part
from simulation.people import People
from simulation.plan import Plan, draw
from simulation.server import EPOCH, Beside, Down, Server
from simulation.sim_store import patched
from simulation.storage import Storage
from simulation.timeline import Timeline
from simulation.training import Training
from simulation.verbs import Verbs
from simulation.watch import Violation, Watch

REST_HOURS = 48.0
"""Limit for the cluster to come to rest after all faults are healed, beside twice the plan's time."""


def any_trial(question: Question, trials: Any, hours_left: float, free: int, seed: int) -> Next:
    """Choose like a campaign, but at once: any rung that the budget holds."""
    rng = random.Random(len(trials))
    held = [n for n, rung in enumerate(question.rungs) if rung.hours <= hours_left]
    if not held or len(trials) > 25:
        return Next((), "", "the budget holds no further trial", None)
    trial = CampaignTrial(rng.choice(held), (10 ** rng.uniform(-4.0, -2.0),), 0, None)
    return Next((trial,), "any", None, None)


@dataclass(frozen=True)
class Result:
    seed: int
    plan: Plan
    hours: float  # Virtual hours, with the time to come to rest.
    events: int
    counts: Counter[str]
    seconds: float  # Of one core.
    digest: str
    violations: list[Violation]
    tail: list[str]

    def line(self) -> str:
        c = self.counts
        return (
            f"seed {self.seed}: {self.plan.gpus} GPUs, {self.hours:.1f} h, {self.events} events, "
            f"{c['runs']} runs, {c['sweeps']} sweeps, {c['attempts']} attempts, "
            f"{c['kills']} kills, {self.seconds:.1f} s, {self.hours / self.seconds:.2f} h/s, "
            f"history {self.digest[:12]}"
        )


class World:
    server_epoch = EPOCH

    def __init__(
        self,
        seed: int,
        plan: Plan,
        rng: random.Random,
        folder: Path,
        check_each_s: float | None = None,
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = rng
        self.timeline = Timeline()
        self.check_each_s = check_each_s
        """Seconds between two looks whether a tick was skipped that was needed; None: drawn."""
        self.counts: Counter[str] = Counter()
        self.lossy = True  # Whether messages are lost, and trainings fail.
        self.disturbed_at = 0.0  # When the server or its bridge last began or ended.
        self.tick_gap_s = max(0.25, len(plan.nodes) / 15)
        self.trainings: dict[str, Training] = {}
        self.storage = Storage(self)
        self.copies_place = folder / "copies"
        self.watch = Watch(self)
        self.server = Server(self, folder)
        self.nodes = [Node(self, f"n{i + 1}", gpus) for i, gpus in enumerate(plan.nodes)]
        self.people = People(self)
        self.verbs = Verbs(self)
        self.node_ends = NodeEnds(self)
        self.faults = Faults(self)

    def after(self, seconds: float, what: str, act: Callable[[], object]) -> None:
        self.timeline.after(seconds, what, act)

    def note(self, what: str) -> None:
        self.timeline.note(what)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def disturb(self) -> None:
        self.disturbed_at = self.timeline.now

    def add_node(self, gpus: int) -> None:
        self.nodes.append(Node(self, f"n{len(self.nodes) + 1}", gpus))
        self.server.bridge.members_changed()

    def training(self, part: Part) -> Training:
        if part.attempt_id not in self.trainings:
            self.trainings[part.attempt_id] = Training(self, part.attempt_id, part.launch)
        return self.trainings[part.attempt_id]

    def server_call(self, act: Callable[[], Any]) -> None:
        """Call the server from its bridge."""
        with suppress(Down):
            self.server.call(act)

    # ------------------------------------------------------------------------------- running

    def run(self) -> float:
        """Live through the plan's hours, heal, come to rest. Return the virtual hours."""
        self.server.start()
        self.people.start()
        self.verbs.start()
        self.node_ends.start()
        self.faults.start()
        self.watch.start()
        end = self.plan.hours * 3600.0
        self._until(lambda: self.timeline.now >= end)
        if not self.watch.violations:
            self.faults.heal()
            self.note("healed")
            self._until(lambda: self.server.up)
            self.watch.healed_at = self.timeline.now
            self.people.settle()
            limit = self.timeline.now + (REST_HOURS + 2 * self.plan.hours) * 3600.0
            self._until(lambda: self.timeline.now >= limit or self.watch.at_rest())
            if not self.watch.violations:
                self.watch.finally_()
        return self.timeline.now / 3600.0

    def describe(self) -> list[str]:
        """Describe the cluster and what has not ended, to explain a violation."""
        found = []
        for node in self.nodes:
            parts = [
                f"{part.attempt_id}/{part.rank} on {part.gpus}"
                + "".join(
                    f" {name}"
                    for name in ("shim", "trainer", "holds", "delivered")
                    if getattr(part, name)
                )
                + (f" exit {part.exit['reason']!r}" if part.exit else "")
                for part in node.parts()
            ]
            flags = [
                name
                for name in (
                    "joined",
                    "on",
                    "ray_alive",
                    "in_trouble",
                    "ray_cuts",
                    "server_cuts",
                    "hangs",
                    "disk_full",
                )
                if getattr(node, name)
            ]
            found.append(f"{node.name} {' '.join(flags)}: {parts}")
        if self.server.up:
            store = self.server.store
            for name, member in self.server.dispatcher.cluster.members().items():
                listed = {one: f"{x.state} {x.gpus}" for one, x in member.attempts.items()}
                found.append(f"member {name} {member.alive} {member.answered}: {listed}")
            for row in store.attempts.list_open():
                beat = self.server.dispatcher.heartbeats.of(row.id)
                found.append(
                    f"open {row.id} {row.placement} dispatched {row.dispatched_at} exited "
                    f"{row.exited_at} in flight {beat.in_flight} exit {row.exit}"
                )
            found += [
                f"run {run.id} {run.state} {run.desired} {run.cause} {run.pending_reason}"
                for run in self.server.dispatcher._loader._runs._rows.values()
            ]
        return found

    def _until(self, over: Callable[[], bool]) -> None:
        while not self.watch.violations and not over():
            try:
                self.timeline.next()
            except (
                HomeUnusable
            ) as error:  # A power cut has left streams, and no record of their run.
                self.watch.fail("durable", str(error), error)
                return
            self.watch.after_event()


def simulate(
    seed: int,
    *,
    mutation: Callable[[], AbstractContextManager[object]] = nullcontext,
    check_each_s: float | None = None,
    **given: Any,
) -> Result:
    """Simulate one seed. ``given``: fields of the plan that are not drawn."""
    rng = random.Random(seed)
    plan = draw(rng, **given)
    begun = time.process_time()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="lehr-simulation-", dir=memory if memory.is_dir() else None
    ) as folder:
        world = World(seed, plan, rng, Path(folder), check_each_s)
        log = logging.getLogger("lehr")
        before = (log.handlers, log.propagate, log.level)
        log.handlers, log.propagate = [world.watch.handler], False
        log.setLevel(logging.WARNING)
        collecting = gc.get_threshold()
        gc.set_threshold(100_000, 20, 50)
        try:
            with (
                patched(rng, world.server.reached, Path(folder) / "runs", world.server.disk),
                patch.object(campaign_choice, "choose", any_trial),
                patch.object(group_loader, "BESIDE", Beside(world)),
                mutation(),
            ):
                try:
                    hours = world.run()
                    described = world.describe() if world.watch.violations else []
                finally:
                    world.server.close()
        finally:
            log.handlers, log.propagate = before[0], before[1]
            log.setLevel(before[2])
            gc.set_threshold(*collecting)
    return Result(
        seed,
        plan,
        hours,
        world.timeline.events,
        world.counts,
        time.process_time() - begun,
        world.timeline.digest,
        world.watch.violations,
        world.timeline.tail + described,
    )
