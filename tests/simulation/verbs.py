"""People who fork, delete, archive and extend, and who bring runs up in stages, by the services."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from lehr.app.services import archive, extend, requests, submit
from lehr.app.services.context import once
from lehr.specs import SweepSpec
from lehr.specs.search import point_key
from simulation.training import ANOMALIES, STEPS_A_RECORD

if TYPE_CHECKING:
    from lehr.store.tables import RolloutRow, RunRow, SweepRow
    from simulation.world import World

VERBS = (
    *("fork", "fork", "fork", "delete", "delete", "archive", "unarchive"),
    *("delete_sweep", "archive_sweep", "extend", "extend"),
    *("rollout", "rollout", "cancel_rollout", "archive_rollout", "delete_of_rollout"),
)
RECENT = 40  # Runs among which people choose: nobody looks through thousands of old ones.


class Verbs:
    def __init__(self, world: World) -> None:
        self.world = world
        self.deleted: set[str] = set()  # Runs whose deletion was confirmed.
        self.points: dict[str, set[str]] = {}
        """The points of each sweep whose launch or extension was confirmed, as keys."""
        self.campaigns: list[str] = []
        self.rollouts: list[str] = []  # Every rollout that was confirmed.
        self._made = 0

    def start(self) -> None:
        if self.world.plan.campaigns:
            self._campaign_later(random.Random(f"campaigns {self.world.seed}"))
        if self.world.plan.verbs:
            self._later()

    def _later(self) -> None:
        plan, rng = self.world.plan, self.world.rng
        mean = 3600.0 / (plan.verbs * max(1.0, plan.gpus / 16))
        self.world.after(rng.expovariate(1.0 / mean), "verb", self._act)

    def _act(self) -> None:
        if self.world.people.active:
            kind = self.world.rng.choice(VERBS)
            self.world.people.attempt(getattr(self, f"_{kind}"))
            self._later()

    def _note(self, what: str) -> None:
        self.world.note(f"person: {what}")

    # ----------------------------------------------------------------------------- choosing

    def _run(self, *, deleted: bool = True) -> RunRow | None:
        """Choose one of the last runs, also of rollouts and sweeps."""
        server = self.world.server
        known = self.world.people.runs[-RECENT:]
        if self.world.people.sweeps and self.world.rng.random() < 0.2:
            sweep_id = self.world.rng.choice(sorted(self.world.people.sweeps)[-RECENT:])
            known = server.call(lambda: [run.id for run in server.store.sweeps.runs(sweep_id)])
        known = [one for one in known if deleted or one not in self.deleted]
        if not known:
            return None
        run_id = self.world.rng.choice(known)
        return server.call(lambda: server.store.runs.get(run_id))

    def _sweep(self) -> SweepRow | None:
        server = self.world.server
        if not self.world.people.sweeps:
            return None
        sweep_id = self.world.rng.choice(list(self.world.people.sweeps)[-RECENT:])
        return server.call(lambda: server.store.sweeps.get(sweep_id))

    def _some_rollout(self) -> RolloutRow | None:
        server = self.world.server
        if not self.rollouts:
            return None
        rollout_id = self.world.rng.choice(self.rollouts[-RECENT:])
        return server.call(lambda: server.store.rollouts.get(rollout_id))

    # -------------------------------------------------------------------------------- forks

    def _fork(self) -> None:
        """Fork a run that runs, waits or has ended, from any of its checkpoints."""
        run = self._run()
        if run is None:
            return
        rng, server = self.world.rng, self.world.server
        points = server.call(lambda: server.store.checkpoints.of_run(run.id))
        step = rng.choice([None, *sorted({point.step for point in points})])
        at = step if step is not None else max([0, *(point.step for point in points)])
        changes: dict[str, Any] = {
            "train.steps": at + STEPS_A_RECORD * rng.randint(1, 8),
            "priority": rng.choice([0, 0, 5]),
        }
        self._note(f"fork {run.id} at {step}")

        def act() -> str:
            operation = submit.fork_run(server.context, run, changes, step=step, provenance={})
            return str(once(server.store, None, operation, status=201).body["id"])

        self.world.people.runs.append(made := server.call(act))
        self.world.note(f"forked: {made}")
        self.world.count("forks")

    # ----------------------------------------------------------------- deletions and archives

    def _delete(self) -> None:
        run = self._run()
        if run is not None:
            self._delete_run(run)

    def _delete_run(self, run: RunRow) -> None:
        server = self.world.server
        self._note(f"delete {run.id} ({run.state})")
        server.call(lambda: archive.delete_run(server.context, run))
        self._are_deleted({run.id})
        self.world.note(f"deleted: {run.id}")
        self.world.count("deletions")

    def settle(self) -> None:
        """Repeat the deletions that were interrupted, as their documentation says."""
        server = self.world.server
        gone = server.call(server.store.runs.deleted_ids)
        for run in server.call(lambda: server.store.runs.by_ids(sorted(gone - self.deleted))):
            self.world.people.attempt(lambda run=run: self._delete_run(run))

    def _delete_sweep(self) -> None:
        sweep = self._sweep()
        if sweep is None:
            return
        server = self.world.server
        runs = server.call(lambda: server.store.sweeps.runs(sweep.id))
        self._note(f"delete sweep {sweep.id}")
        server.call(lambda: archive.delete_sweep(server.context, sweep))
        self._are_deleted({run.id for run in runs})
        self.world.count("deletions of sweeps")

    def _are_deleted(self, run_ids: set[str]) -> None:
        self.deleted |= run_ids
        self.world.watch.groups.check_deletions(run_ids)

    def _delete_of_rollout(self) -> None:
        rollout = self._some_rollout()
        if rollout is None:
            return
        server = self.world.server
        links = server.call(lambda: server.store.rollouts.runs(rollout.id))
        if links:
            self._delete_run(self.world.rng.choice(links)[1])

    def _archive(self) -> None:
        run = self._run(deleted=False)
        if run is not None:
            self._note(f"archive {run.id} ({run.state})")
            server = self.world.server
            server.call(lambda: archive.set_run_archived(server.context, run, True))
            self.world.count("archives")

    def _unarchive(self) -> None:
        run = self._run()
        if run is not None:
            self._note(f"unarchive {run.id}")
            server = self.world.server
            server.call(lambda: archive.set_run_archived(server.context, run, False))

    def _archive_sweep(self) -> None:
        sweep = self._sweep()
        if sweep is not None:
            self._note(f"archive sweep {sweep.id}")
            server = self.world.server
            change = archive.unarchive_sweep if sweep.archived else archive.archive_sweep
            server.call(lambda: change(server.context, sweep))

    # ------------------------------------------------------------------------------- sweeps

    def launched(self, sweep_id: str, spec: SweepSpec) -> None:
        """Note the points of a sweep whose launch was confirmed."""
        self.points[sweep_id] = {point_key(point) for point in spec.all_points()}

    def _campaign_later(self, rng: random.Random) -> None:
        """Launch campaigns. What is drawn for them changes nothing else of a seed."""

        def launch() -> None:
            if self.world.people.active:
                self.world.people.attempt(lambda: self._launch_campaign(rng))
                self._campaign_later(rng)

        self.world.after(rng.expovariate(self.world.plan.campaigns / 3600), "campaign", launch)

    def _launch_campaign(self, rng: random.Random) -> None:
        self._made += 1
        train = {
            "model": "tiny",
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 4, "sequence_length": 64},
            "steps": 400,
            "validation": {"tokens": 16_384},
        }
        run = {"train": train, "retries": {"infrastructure": 8, "user": 1}}
        run["env"] = {"SIM_RECORD_S": f"{rng.uniform(2.0, 12.0):.1f}", "SIM_CAMPAIGN": "1"}
        spec = {"kind": "campaign", "name": f"c{self._made}", "target": run}
        spec |= {"budget": {"gpu_hours": rng.uniform(0.3, 1.5)}, "max_concurrent": 3}
        server = self.world.server

        def act() -> str:
            operation = submit.launch_sweep(server.context, spec, {}, {})
            return str(once(server.store, None, operation, status=201).body["id"])

        made = server.call(act)
        self.world.people.sweeps[made] = 3
        self.points[made] = set()
        self.campaigns.append(made)
        self.world.note(f"submitted campaign {made}")
        self.world.count("campaigns")

    def _extend(self) -> None:
        sweep = self._sweep()
        if sweep is None:
            return
        rng, server = self.world.rng, self.world.server
        more: dict[str, Any] = {"trials": rng.randint(1, 4)}
        if sweep.spec["method"] == "campaign":
            more = {"gpu_hours": rng.uniform(0.1, 0.5)}
        if sweep.spec["method"] == "list":
            self._made += 1
            points = [{"train.optimizer.lr": 0.02 + 0.001 * self._made}]
            more = {"points": points + [dict(sweep.spec["points"][0])] * (rng.random() < 0.3)}
        self._note(f"extend sweep {sweep.id} {more}")

        def act() -> None:
            operation = extend.extend_sweep(server.context, sweep, **more)
            once(server.store, None, operation, status=200)
            server.dispatcher.wake()

        server.call(act)
        self.points[sweep.id] |= {point_key(point) for point in more.get("points", ())}
        self.world.count("extensions")

    # ----------------------------------------------------------------------------- rollouts

    def _rollout(self) -> None:
        rng, server = self.world.rng, self.world.server
        self._made += 1
        gpus = min(self.world.plan.nodes[0], rng.choice([1, 2, 2, 4]))
        record_s = rng.uniform(10, 200) * min(self.world.plan.pace, 4.0)
        steps = 6 * STEPS_A_RECORD

        def gates(*names: str) -> dict[str, Any]:
            return {name: {"enabled": rng.random() < 0.7} for name in names}

        spec = {
            "kind": "rollout",
            "name": f"o{self._made}",
            "run": {
                "resources": {"gpus": gpus},
                "retries": rng.choice([{}, {"infrastructure": 0}, {"user": 1}]),
                "train": {
                    "model": "tiny",
                    "data": {"corpus": {"kind": "stdlib"}},
                    "batch": {"sequences": 4, "sequence_length": 64},
                    "steps": steps,
                },
                "env": {"SIM_RECORD_S": f"{record_s:.1f}", "SIM_ROLLOUT": "1"},
            },
            "stages": {
                name: {
                    "steps": steps,
                    "gates": gates(*ANOMALIES, "exact_resume"),
                    "enabled": rng.random() < 0.7,
                }
                for name in ("cpu", "one_gpu", "two_gpus")
            }
            | {"all": {"judge_after": rng.choice([40, 60]), "gates": gates(*ANOMALIES)}},
        }
        self._note(f"rollout o{self._made}")

        def act() -> str:
            operation = submit.launch_rollout(server.context, spec, {}, {})
            made = once(server.store, None, operation, status=201)
            server.dispatcher.wake()
            return str(made.body["id"])

        self.rollouts.append(made := server.call(act))
        self.world.note(f"launched rollout {made}")
        self.world.count("rollouts")

    def _cancel_rollout(self) -> None:
        rollout = self._some_rollout()
        if rollout is None or self.world.rng.random() < 0.5:
            return
        self._note(f"cancel rollout {rollout.id}")
        server = self.world.server
        server.call(lambda: requests.cancel_rollout(server.context, rollout))

    def _archive_rollout(self) -> None:
        rollout = self._some_rollout()
        if rollout is not None:
            self._note(f"archive rollout {rollout.id}")
            server = self.world.server
            archived = not rollout.archived
            server.call(lambda: archive.set_rollout_archived(server.context, rollout, archived))
