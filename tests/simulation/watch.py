"""The invariants. Each violation names the invariant that it breaks."""

from __future__ import annotations

import logging
import random
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lehr.cluster.dispatcher import TICK_S
from lehr.cluster.exits import excluded
from lehr.cluster.run_values import saved
from lehr.control.lifecycle import ACTIVE, RunState
from lehr.control.nodes import Exclude
from lehr.control.queue import StartRun
from lehr.control.reconcile import AttemptPhase
from lehr.control.sweeps import StopSweep
from lehr.errors import LehrError, StoreUnavailable
from lehr.store import Change
from lehr.store.tables import Attempt, RunRow
from lehr_testing.dispatching import overlooked
from simulation.part import Part
from simulation.people import READMITTED_S
from simulation.server import Down
from simulation.watch_groups import GroupWatch
from simulation.watch_living import LivingWatch
from simulation.watch_record import BytesWatch, HistoryWatch, check_bytes

if TYPE_CHECKING:
    from simulation.training import Training
    from simulation.world import World

INVARIANTS = (
    *("gpu", "twice", "gang", "transitions", "stuck", "budget", "requests", "left_over"),
    *("bytes", "starvation", "completed", "sweep_limit", "internal", "checkpoint"),
    *("overlooked", "fork", "deleted", "trials", "rollout", "durable", "copies"),
    *("node_end", "excluded", "scores", "evaluations", "campaign"),
)
CHECK_S = 60.0
IN_THE_WAY_S = 30.0
"""Of an evaluation that a training needs the GPU of: it is stopped with the next tick."""


@dataclass(frozen=True)
class Violation:
    invariant: str
    text: str
    trace: str = ""


class _Handler(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self.watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, StoreUnavailable) and self.watch.world.server.disk_full:
            return
        self.watch.fail("internal", record.getMessage(), error)


class Watch:
    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.handler = _Handler(self)
        self.healed_at: float | None = None
        self.groups = GroupWatch(world, self)
        self.living = LivingWatch(world)
        self.history = HistoryWatch(self)
        self.bytes = BytesWatch(self)
        self.power_is_cut = self.groups.power_is_cut
        self.about_to_call = self.groups.about_to_call
        self._begun: Counter[tuple[str, str]] = Counter()
        self._begun_on: dict[tuple[str, int], str] = {}
        self._in_the_way_since: float | None = None
        self._saved: set[tuple[str, str]] = set()
        self.completed_runs: set[str] = set()  # Runs that a trainer has completed.
        self._head: tuple[str, float] | None = None
        self._rng = random.Random(world.seed)
        # Its own, so that these moments do not change the history.

    def fail(self, invariant: str, text: str, error: BaseException | None = None) -> None:
        assert invariant in INVARIANTS
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self.world.note(f"VIOLATION {invariant}: {text}")
        self.violations.append(Violation(invariant, text, trace))

    def start(self) -> None:
        self.world.after(CHECK_S, "check", self._check)
        self._look_for_overlooked()

    # --------------------------------------------------------------- facts of the simulation

    def begun(self, part: Part) -> None:
        self.world.count("attempts")
        self._begun[part.attempt_id, part.node.name] += 1
        if self._begun[part.attempt_id, part.node.name] > 1:
            self.fail("twice", f"{part.attempt_id} is begun twice on {part.node.name}")
        first = self._begun_on.setdefault((part.attempt_id, part.rank), part.node.name)
        if first != part.node.name:
            self.fail("twice", f"{part.attempt_id} is begun on {first} and on {part.node.name}")

    def written_again(self, part: Part) -> None:
        self.fail("twice", f"{part.attempt_id} writes its streams twice")

    def trains(self, part: Part) -> None:
        self.living.touch_training(part.training)
        for other in part.node.parts():
            if other is not part and other.trainer and set(other.gpus) & set(part.gpus):
                self.fail("gpu", f"{part.attempt_id} and {other.attempt_id} train on one GPU")

    def gpu_busy(self, part: Part) -> None:
        self.world.count("gpu_busy")

    def resumes(self, training: Training, path: str) -> None:
        """``path``: of the run itself, or absolute, as a fork has it."""
        *_, run_id, attempt, folder, step = ["", training.run_id, *path.split("/")[-4:]]
        if (run_id, f"{attempt}/{folder}/{step}") not in self._saved:
            self.fail("checkpoint", f"{training.attempt_id} resumes from {path}: never saved")

    def saved(self, training: Training, path: str) -> None:
        self._saved.add((training.run_id, path))

    def completed(self, training: Training) -> None:
        self.completed_runs.add(training.run_id)

    def refused(self, part: Part, what: str, error: LehrError) -> None:
        self.fail("internal", f"{what} of {part.attempt_id} is refused: {error!r}", error)

    def acknowledged(self, part: Part, name: str, size: int) -> None:
        self.groups.acknowledged(part, name, size)
        self.bytes.acknowledged(part, name, size)

    # ------------------------------------------------------------------------ calls and ticks

    def watch_server(self) -> None:
        """Look at the actions of each tick before they are applied."""
        self.groups.started()
        self.world.server.store.subscribe(self._changed)
        executor = self.world.server.dispatcher._executor
        apply = executor.apply

        def checked(actions: Sequence[Any]) -> Any:
            starts = [action for action in actions if isinstance(action, StartRun)]
            stops = {one.sweep_id for one in actions if isinstance(one, StopSweep)}
            self.groups.stopping = stops
            for start in starts:
                self._check_start(start)
                if (wrong := self.world.node_ends.wrong_start(start)) is not None:
                    self.fail("node_end", wrong)
                self.groups.check_start(start)
            for action in actions:
                if isinstance(action, Exclude):
                    self._check_exclusion(action)
            return apply(actions)

        executor.apply = checked  # type: ignore[method-assign]

    def _check_start(self, start: StartRun) -> None:
        """No GPU is given to a run while an agent lists a living attempt on it."""
        server = self.world.server
        members = server.dispatcher.cluster.members()
        for share in start.placement:
            for attempt_id, listed in members[share.node].attempts.items():
                if listed.state is AttemptPhase.LIVE and set(listed.gpus) & set(share.gpus):
                    row = server.store.attempts.get(attempt_id)
                    if row.exited_at is None or (row.exit or {}).get("synthetic"):
                        self.fail(
                            "gpu",
                            f"{start.run_id} starts on a GPU of {share.node} on which its agent "
                            f"lists {attempt_id}",
                        )

    def _check_exclusion(self, action: Exclude) -> None:
        """No node is excluded that never had a fault, nor any when all have long been healed."""
        node = next(one for one in self.world.nodes if one.name == action.node)
        healed = self.healed_at is not None and (
            self.world.timeline.now - self.healed_at > READMITTED_S + 600.0
        )
        if healed or not (node.disturbed_at or node.in_trouble or node.bad_gpu):
            self.fail("excluded", f"{node.name} is excluded: {action.message}")

    def _changed(self, change: Change) -> None:
        if change.kind == "run" and not change.progress:
            self.living.run_changed(change.id)

    def after_call(self) -> None:
        """Check what a call of the server, or a tick, has recorded."""
        if self.history.after_call():
            self._check_holders()

    def after_tick(self) -> None:
        self.living.after_tick()
        self._check_head()

    def after_event(self) -> None:
        self.living.after_event()

    def _check_holders(self) -> None:
        """Each GPU has one attempt, and no sweep more than its limit."""
        store = self.world.server.store
        active = {run.id: run for run in store.runs.by_state(ACTIVE)}
        holders: dict[tuple[str, int], str] = {}
        sweeps = Counter(run.sweep_id for run in active.values() if run.sweep_id is not None)
        for row in store.attempts.list_open():
            if row.exited_at is not None:
                continue
            for share in row.placement:
                for gpu in share["gpus"]:
                    other = holders.setdefault((share["node"], gpu), row.id)
                    if other != row.id:
                        self.fail("gpu", f"{row.id} and {other} both have GPU {gpu} of a node")
        for sweep_id, number in sweeps.items():
            limit = self.world.people.sweeps.get(sweep_id)
            if limit is not None and number > limit:
                self.fail("sweep_limit", f"{sweep_id} runs {number} trials: its limit is {limit}")

    def _look_for_overlooked(self) -> None:
        """Between ticks, nothing is to be done. Check it at drawn moments, or each second."""
        each = self.world.check_each_s
        pause = each if each is not None else self._rng.uniform(10.0, 400.0)
        self.world.after(pause, "look", self._look_for_overlooked)
        server = self.world.server
        # What has just arrived may wait for a second.
        if not server.up or server.dispatcher.alarm.due - self.world.timeline.now <= TICK_S:
            return
        self.world.count("looks between ticks")
        try:
            found = server.call(lambda: overlooked(server.dispatcher))
        except Down:
            return
        for action in found:
            self.fail("overlooked", f"no tick was due, but there was {action}")

    # ------------------------------------------------------------------------- once a minute

    def _check(self) -> None:
        self.world.after(CHECK_S, "check", self._check)
        busy = sum(
            len(part.gpus) for node in self.world.nodes for part in node.parts() if part.trainer
        )
        self.world.counts["GPU minutes"] += busy
        self.world.counts["idle minutes"] += not busy
        self.living.look_at_all()
        self._check_head()

    def _check_head(self) -> None:
        """The first of the queue starts once what ran before it has ended."""
        server = self.world.server
        if not server.up or not server.bridge.session:
            return
        rows = server.dispatcher._loader._runs._rows
        order = server.dispatcher.queue_order()
        waits = order[0] if order else None
        run = rows.get(waits) if waits is not None else None
        usable = [node for node in self.world.nodes if node.joined and not node.in_trouble]
        members = self.world.server.dispatcher.cluster.members()
        fits = (
            run is not None
            and run.desired == "run"
            and "next in line" in (run.pending_reason or "")
            and sum(node.gpus for node in usable) == self.world.plan.gpus
            # The server may not know yet of a node that has just joined.
            and all(node.name in members and members[node.name].usable for node in usable)
        )
        if not fits or waits is None or run is None or self.world.node_ends.any_near():
            self._head = self._in_the_way_since = None
            return
        now = self.world.timeline.now
        quiet = max(self.world.disturbed_at, *(node.disturbed_at for node in self.world.nodes))
        if not self._evaluations_in_the_way(run, {node.name: node.gpus for node in usable}):
            self._in_the_way_since = None
        elif now - max(self._in_the_way_since or now, quiet) > IN_THE_WAY_S:
            self.fail("evaluations", f"{waits} waits for one: {run.pending_reason}")
        else:
            self._in_the_way_since = self._in_the_way_since or now
        # Whatever ranks before it may go on: by priority, then by submission, which also holds for
        # the trials of an earlier sweep that start one after the other.
        ahead = any(
            row.state in {"starting", "running", "stopping"} and _rank(row) < _rank(run)
            for row in rows.values()
        )
        if self._head is None or self._head[0] != waits or ahead:
            self._head = (waits, now)
        if now - max(self._head[1], quiet) > 3 * self.world.plan.longest_s:
            self.fail(
                "starvation",
                f"{waits} is first in the queue since {now - self._head[1]:.0f} s: "
                f"{run.pending_reason}",
            )

    def _evaluations_in_the_way(self, run: RunRow, gpus: dict[str, int]) -> bool:
        """Return whether evaluations that go on are all that keeps a new training from a node."""
        need, store = run.spec["resources"], self.world.server.store
        if run.evaluates or run.attempt or run.forked_from or need["nodes"] > 1 or not need["gpus"]:
            return False
        taken: Counter[str] = Counter()
        evaluating: Counter[str] = Counter()
        leaving: Counter[str] = Counter()
        """Of evaluations that make room already, which may take long."""
        for row in store.attempts.list_open():
            owner = store.runs.get(row.run_id)
            goes_on = owner.state in {"starting", "running"} and owner.desired == "run"
            held = evaluating if owner.evaluates and goes_on else taken
            for share in row.placement if row.exited_at is None else ():
                held[share["node"]] += len(share["gpus"])
                leaving[share["node"]] += len(share["gpus"]) * (
                    held is taken and bool(owner.evaluates)
                )
        out = excluded(store.nodes.notes())
        return any(
            evaluating[name]
            and name not in out
            and number - taken[name] >= need["gpus"] > leaving[name]
            for name, number in gpus.items()
        )

    # -------------------------------------------------------------------------------- the end

    def at_rest(self) -> bool:
        """Return whether nothing is left to do."""
        world = self.world
        if not world.server.up or any(node.entries for node in world.nodes if node.joined):
            return False
        rows = world.server.dispatcher._loader._runs._rows.values()
        if not all(self._may_rest(row) for row in rows):
            return False
        now = world.timeline.now
        due = world.server.dispatcher.alarm.due
        if now - (self.healed_at or now) < 120 or due - now <= TICK_S:
            return False
        return all(self._out_of_reach(row) for row in world.server.store.attempts.list_open())

    def _may_rest(self, run: RunRow) -> bool:
        """Return whether it is paused, or waits for a node that is gone for good with its only
        checkpoints: docs/operations.md says that it waits, and that its reason names the node.
        """
        if (run.state, run.desired) != ("queued", "run"):
            return (run.state, run.desired) == ("paused", "pause")
        if "its checkpoint" not in (run.pending_reason or ""):
            return False
        there = saved(self.world.server.store, run)
        return there is not None and not there.copied and self._gone() >= set(there.nodes)

    def _gone(self) -> set[str]:
        return {node.name for node in self.world.nodes if not node.joined}

    def _out_of_reach(self, row: Attempt) -> bool:
        """Return whether its streams may still be on a node that is gone for good."""
        gone = self._gone()
        return row.exited_at is not None and any(s["node"] in gone for s in row.placement)

    def finally_(self) -> None:
        """Check the whole record."""
        store = self.world.server.store
        runs = store.runs.by_state(set(RunState))
        self.world.counts["trials"] = sum(run.sweep_id is not None for run in runs)
        known = {run.id for run in runs}
        for run_id in self.world.people.runs:
            if run_id not in known:
                self.fail("stuck", f"{run_id} was confirmed, and is lost")
        for run in runs:
            if not RunState(run.state).ended and not self._may_rest(run):
                self.fail("stuck", f"{run.id} is {run.state} ({run.desired}): {run.pending_reason}")
            if run.cause == "internal":
                self.fail("internal", f"{run.id} ended with {run.reason}")
            self.history.finally_(run)
        for node in self.world.nodes:
            for part in node.parts():
                if node.joined and (part.trainer or part.shim):
                    self.fail("left_over", f"{part.attempt_id} is still on {node.name}")
        for row in store.attempts.list_open():
            if not self._out_of_reach(row):
                self.fail("left_over", f"attempt {row.id} is never closed")
        for sweep_id in self.world.people.sweeps:
            stopped = store.sweeps.get(sweep_id).stopped
            if stopped is not None and "internal" in stopped:
                self.fail("internal", f"sweep {sweep_id}: {stopped}")
        deleted = store.runs.deleted_ids()
        for training in self.world.trainings.values():
            if training.run_id not in deleted:
                check_bytes(self, training)
        self.groups.finally_()


def _rank(run: RunRow) -> tuple[int, int]:
    return (-run.priority, run.number or 0)
