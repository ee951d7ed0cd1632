"""The invariants of forks, deletions, extensions, rollouts, and of what a power cut must leave."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from lehr.base import home as homes
from lehr.control.campaign_record import STOP_S
from lehr.control.evaluations import Evaluates
from lehr.control.lifecycle import RunState
from lehr.control.queue import StartRun
from lehr.errors import NotFound
from lehr.specs import RolloutSpec, SweepSpec
from lehr.specs.search import point_key
from lehr.specs.stages import stages
from lehr.store.streams.replica import SCORES
from simulation.part import Part

if TYPE_CHECKING:
    from lehr.store.tables import RolloutRow, RolloutRun, RolloutStage, RunRow
    from simulation.training import Training
    from simulation.watch import Watch
    from simulation.world import World

GOOD = {"passed", "not_judged"}
RECORDED = ("transitions", "requests", "attempts", "checkpoints", "rollout_runs", "trials")
"""Tables whose rows stay for good."""


class GroupWatch:
    def __init__(self, world: World, watch: Watch) -> None:
        self.world = world
        self.fail = watch.fail
        self._acknowledged: dict[tuple[str, str], int] = {}
        """Bytes of each stream that the server has acknowledged since the last power cut."""
        self.stopping: set[str] = set()
        """Sweeps that the tick stops: what they have queued does not start."""
        self._recorded: dict[str, int] = {}
        """What was recorded before the call in which the power was cut."""
        self._cut = False

    # ------------------------------------------------------------------------------- durable

    def acknowledged(self, part: Part, name: str, offset: int) -> None:
        if part.training.run_id in self.world.verbs.deleted:
            self.fail("deleted", f"{part.attempt_id}/{name}: stored, although its run was deleted")
        self._acknowledged[part.attempt_id, name] = offset

    def about_to_call(self) -> None:
        """Note the rows that the calls before have recorded."""
        self._recorded = self._rows()

    def power_is_cut(self) -> None:
        self._cut = True

    def started(self) -> None:
        """After a power cut: what was acknowledged is there."""
        if not self._cut:
            return
        self._cut = False
        now = self._rows()
        for table, rows in self._recorded.items():
            if now[table] < rows:
                self.fail("durable", f"{table} had {rows} rows before the power cut, now {now}")
        store = self.world.server.store
        gone = store.runs.deleted_ids()
        for (attempt_id, name), offset in self._acknowledged.items():
            if attempt_id.rpartition("-")[0] in gone:
                continue
            size = self._size(attempt_id, name)
            if size < offset:
                self.fail(
                    "durable",
                    f"{attempt_id}/{name}: {offset} bytes were acknowledged, {size} are left",
                )
        self._acknowledged.clear()

    def _size(self, attempt_id: str, name: str) -> int:
        try:
            return self.world.server.store.streams.sizes(attempt_id).get(name, 0)
        except NotFound:
            return 0

    def _rows(self) -> dict[str, int]:
        connection = self.world.server.store.db._raw
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in RECORDED
        }

    # -------------------------------------------------------------------------------- starts

    def check_start(self, start: StartRun) -> None:
        """No deleted run starts, no fork without its base, no stage before the one before it."""
        store = self.world.server.store
        run = store.runs.get(start.run_id)
        if store.runs.is_deleted(run.id):
            self.fail("deleted", f"{run.id} starts, although it was deleted")
        if run.forked_from is not None and not store.checkpoints.of_run(run.id):
            path = "/".join((run.resume_from or "").split("/")[-3:])
            points = store.checkpoints.of_run(run.forked_from)
            if path not in {point.path for point in points}:
                self.fail("fork", f"{run.id} starts from {run.forked_from}/{path}: it was removed")
        if "SIM_ROLLOUT" in run.spec["env"]:
            self._check_stage(run)
        if run.sweep_id in set(self.world.verbs.campaigns) - self.stopping:
            self._check_campaign(run.sweep_id, run.id)
        wrong = self.world.storage.check_start(start)
        if wrong is not None:
            self.fail("copies", wrong)

    def _check_campaign(self, sweep_id: str, starts: str | None = None) -> None:
        """What a campaign has used, and what it may still use, is in its budget at each start.

        An attempt that no server could stop, or no agent, counts as long as it was allowed.
        """
        store = self.world.server.store
        spec = SweepSpec.model_validate(store.sweeps.get(sweep_id).spec)
        assert spec.campaign is not None
        promised = 0.0
        for run in store.sweeps.runs(sweep_id):
            allowed = (run.spec["time_limit_s"] + STOP_S) / 3600
            times = store.attempts.times_by_run([run.id])[run.id]
            used = [(one.ended - one.began) / 3600 for one in times if one.ended is not None]
            promised += sum(min(one, allowed) for one in used)
            promised += allowed * (run.id == starts or len(used) < len(times))
        if promised > spec.campaign.gpu_hours + 1e-6:
            have = f"{promised:.3f} of {spec.campaign.gpu_hours:.3f} GPU-hours"
            self.fail("campaign", f"{sweep_id} uses {have}; {starts} starts")

    def _check_pruned(self, sweep_id: str) -> None:
        """A trial of a campaign is pruned only by one of its own rung."""
        trials = self.world.server.store.sweeps.outlines(sweep_id)
        sizes = {trial.number: str(trial.spans) for trial in trials}
        for trial in trials:
            reason = trial.reason if trial.state == "pruned" else None
            if rival := re.search(r", trial (\d+) at", reason or ""):
                self.world.count("pruned in campaigns")
                if sizes[int(rival[1])] != sizes[trial.number]:
                    self.fail("campaign", f"{trial.run_id} of another rung is pruned: {reason}")

    def _check_evaluations(self) -> None:
        """Each checkpoint is evaluated once, and each value is in the curves of its run once."""
        store = self.world.server.store
        rows = [run for run in store.runs.by_state(set(RunState)) if run.evaluates]
        reported: Counter[str] = Counter()
        evaluated = {Evaluates.parse(run.evaluates or "")[:2] for run in rows}
        for name in (f"{run_id}-{attempt}" for run_id, attempt in sorted(evaluated)):
            if self._size(name, SCORES):
                lines = store.streams.read(name, SCORES).splitlines()
                reported.update(json.loads(line)["evaluation"] for line in lines)
        for run in rows:
            self.world.count(f"evaluations {run.state}")
            of = Evaluates.parse(run.evaluates or "")
            lost = store.runs.is_deleted(of.run_id) or store.runs.is_deleted(run.id)
            expected = int(run.state == RunState.COMPLETED) if not lost else reported[run.id]
            if reported[run.id] != expected:
                self.fail("scores", f"{run.id} is {run.state}, and reported {reported[run.id]} x")

    def removes_copy(self, run_id: str, path: str) -> None:
        """No copy is removed that a fork waits for."""
        store = self.world.server.store
        if not self.world.server.up:
            return
        for fork in store.runs.waiting_forks(run_id):
            if not store.runs.is_deleted(run_id) and (fork.resume_from or "").endswith(
                f"/{run_id}/{path}"
            ):
                self.fail("copies", f"{fork.id} waits for {run_id}/{path}: its copy is removed")

    def _check_stage(self, run: RunRow) -> None:
        store = self.world.server.store
        rollout_id = store.rollouts.of_runs([run.id]).get(run.id)
        if rollout_id is None:
            return  # A fork of a stage's run, which belongs to nobody but its owner.
        at = next(link for link, one in store.rollouts.runs(rollout_id) if one.id == run.id).stage
        verdicts = store.rollouts.verdicts(rollout_id)
        planned = stages(RolloutSpec.model_validate(store.rollouts.get(rollout_id).spec))
        for stage in store.rollouts.stages(rollout_id)[: at - 1]:
            found = {one.gate: one.verdict for one in verdicts if one.stage == stage.number}
            wanted = [n for n, gate in planned[stage.number - 1].gates.items() if gate.enabled]
            if stage.outcome != "passed" or any(found.get(name) not in GOOD for name in wanted):
                self.fail(
                    "rollout", f"{run.id} of stage {at} starts; {stage.name}: {found} of {wanted}"
                )

    # ------------------------------------------------------------------------------- the end

    def finally_(self) -> None:
        self._check_evaluations()
        self._check_all_deletions()
        self._check_trials()
        for sweep_id in self.world.verbs.campaigns:
            self._check_campaign(sweep_id)
            self._check_pruned(sweep_id)
        self._check_copies()
        for rollout_id in self.world.verbs.rollouts:
            self._check_rollout(rollout_id)

    def _check_all_deletions(self) -> None:
        gone = self.world.server.store.runs.deleted_ids()
        for run_id in sorted(self.world.verbs.deleted - gone):
            self.fail("deleted", f"the deletion of {run_id} was confirmed, and is lost")
        self.check_deletions(gone)

    def check_deletions(self, gone: set[str]) -> None:
        """Of a deleted run there are no checkpoints and no streams."""
        store = self.world.server.store
        for run in store.runs.by_ids(sorted(gone)):
            if not RunState(run.state).ended or not run.archived:
                self.fail("deleted", f"{run.id} was deleted, and is {run.state}")
            if store.checkpoints.of_run(run.id):
                self.fail("deleted", f"{run.id} was deleted, and has checkpoints")
            for attempt in store.attempts.of_run(run.id):
                folder = homes.replica_dir(self.world.server.home) / attempt.id
                if store.streams.of_attempt(attempt.id) or folder.exists():
                    self.fail("deleted", f"{attempt.id} was deleted, and has streams")

    def _check_trials(self) -> None:
        """Each point that was confirmed has one trial."""
        store = self.world.server.store
        for sweep_id, points in self.world.verbs.points.items():
            found = [point_key(trial.parameters) for trial in store.sweeps.trials(sweep_id)]
            missing = points - set(found)
            if missing:
                self.fail("trials", f"{sweep_id} lacks the points {sorted(missing)}")
            if len(found) != len(set(found)) and store.sweeps.get(sweep_id).spec["method"] in {
                "list",
                "campaign",
            }:
                self.fail("trials", f"{sweep_id} has a point twice: {sorted(found)}")

    def _check_copies(self) -> None:
        """What is recorded as a copy is one."""
        store = self.world.server.store
        for run in store.runs.by_state(set(RunState)) if self.world.plan.copies else ():
            for point in store.checkpoints.copied(run.id):
                if not self.world.storage.exists(point.copy_url or ""):
                    self.fail("copies", f"{run.id}/{point.path} is recorded as copied, and is not")

    def _check_rollout(self, rollout_id: str) -> None:
        store = self.world.server.store
        rollout = store.rollouts.get(rollout_id)
        links = store.rollouts.runs(rollout_id)
        rows = store.rollouts.stages(rollout_id)
        if "internal" in (rollout.reason or ""):
            self.fail("internal", f"rollout {rollout_id}: {rollout.reason}")
        roles = [(link.stage, link.role) for link, _ in links]
        if len(roles) != len(set(roles)):
            self.fail("rollout", f"{rollout_id} has a run twice: {roles}")
        if rollout.outcome is None:
            if all(RunState(run.state).ended for _, run in links):
                self.fail("rollout", f"{rollout_id} never ends: {roles}")
            return
        if rollout.outcome == "passed" and any(row.outcome != "passed" for row in rows):
            self.fail("rollout", f"{rollout_id} passed without all of its stages")
        for row in rows:
            if row.outcome == "passed":
                self._check_passed(
                    rollout, row, [one for one in links if one[0].stage == row.number]
                )
        if rollout.outcome == "failed" and not any(self._explains(run) for _, run in links):
            self.fail(
                "rollout", f"{rollout_id} failed, and all its runs did well: {rollout.reason}"
            )

    def _check_passed(
        self, rollout: RolloutRow, row: RolloutStage, links: list[tuple[RolloutRun, RunRow]]
    ) -> None:
        planned = stages(RolloutSpec.model_validate(rollout.spec))[row.number - 1]
        gates = {name for name, gate in planned.gates.items() if gate.enabled}
        if row.name == "cpu":
            gates.discard("memory")  # It limits the memory of a GPU.
        for link, run in links:
            name = f"stage {row.name} of {rollout.id}"
            if run.state != RunState.COMPLETED:
                self.fail("rollout", f"{name} passed, and its run {run.id} is {run.state}")
            its = self._trainings(run)
            if (
                row.name != "all"
                and link.role == "train"
                and len(its) == 1
                and its[0].anomaly in gates
            ):
                self.fail(
                    "rollout", f"{name} passed, and {run.id} had the anomaly {its[0].anomaly}"
                )
            if link.role == "resumed" and its and its[-1].drifts:
                self.fail("rollout", f"{name} passed, and {run.id} did not resume exactly")

    def _explains(self, run: RunRow) -> bool:
        """Return whether the run may have failed its rollout, although it was retried since."""
        its: list[Any] = self._trainings(run)
        bad = {RunState.FAILED, RunState.CANCELLED}
        before = any(one.new in bad for one in self.world.server.store.transitions.of_run(run.id))
        return (
            before
            or run.state != RunState.COMPLETED
            or any(one.anomaly or one.drifts for one in its)
        )

    def _trainings(self, run: RunRow) -> list[Training]:
        found = [self.world.trainings.get(f"{run.id}-{n + 1}") for n in range(run.attempt)]
        return [one for one in found if one is not None]
