"""People: they submit runs and sweeps, and change their minds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr.app.services import requests
from lehr.app.services.context import once
from lehr.control.lifecycle import ACTIVE, Desired, RunState
from lehr.errors import LehrError
from lehr.specs import expand, load_spec
from lehr.specs.sweep import SweepSpec
from simulation.server import Down
from simulation.training import STEPS_A_RECORD

if TYPE_CHECKING:
    from simulation.world import World

REQUESTS = (
    *("cancel", "cancel", "pause", "pause", "resume", "resume", "resume", "retry", "retry"),
    *("exclude", "readmit", "cancel_sweep", "retry_sweep", "save"),
)
READMITTED_S = 900.0
"""After all faults are healed every node is readmitted, and once more so much later."""


class People:
    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: list[str] = []
        """Every run that the store has confirmed; trials come in as they are found."""
        self.sweeps: dict[str, int | None] = {}  # Every sweep, with its ``max_concurrent``.
        self._submitted = 0
        self.active = True

    def start(self) -> None:
        for _ in range(len(self.world.plan.nodes)):
            self.world.after(self.world.rng.uniform(5, 60), "submission", self._submit_one)
        self._submit_later()
        if self.world.plan.people:
            self._request_later()

    def _submit_later(self) -> None:
        plan, rng = self.world.plan, self.world.rng
        # Each submission asks for about this many GPU seconds; see ``_shape`` and ``_length_s``.
        asked = 2.2 * 1900.0 * plan.pace * max(1.0, plan.gpus / 24)
        mean = asked / (plan.load * plan.gpus)
        self.world.after(rng.expovariate(1.0 / mean), "submission", self._submit)

    def _submit(self) -> None:
        if self.active:
            self._submit_one()
            self._submit_later()

    def _submit_one(self) -> None:
        if self.world.rng.random() < self.world.plan.sweeps / 3:
            self.attempt(self._submit_sweep)
        else:
            self.attempt(self._submit_run)

    def attempt(self, act: Any) -> None:
        """Carry out a request, which the server may refuse or not answer."""
        try:
            act()
        except Down:
            self.world.note("people: the server does not answer")
        except LehrError as error:
            self.world.note(f"people: {type(error).__name__}")

    # -------------------------------------------------------------------------------- specs

    def _shape(self) -> dict[str, Any]:
        """Draw GPUs and nodes that the whole cluster could hold."""
        plan, rng = self.world.plan, self.world.rng
        smallest, widest = min(plan.nodes), max(plan.nodes)
        draw = rng.random()
        if draw < 0.06:
            return {"gpus": 0}
        if draw < plan.gangs and len(plan.nodes) > 1:
            nodes = rng.choice([2, 2, max(2, len(plan.nodes) // 4), len(plan.nodes)])
            return {"gpus": nodes * rng.choice([1, smallest]), "nodes": nodes}
        if draw < plan.gangs + 0.08:
            return {"gpus": widest}
        most = max(1, plan.gpus // 24)
        return {"gpus": min(widest, rng.choice([1, 1, 1, 2, min(4, most * 2)]))}

    def _length_s(self) -> float:
        rng = self.world.rng
        low, high = rng.choice([(60, 600), (60, 600), (600, 2400), (600, 2400), (2400, 7200)])
        return rng.uniform(low, high) * self.world.plan.pace

    def _run_spec(self, resources: dict[str, Any] | None = None) -> dict[str, Any]:
        rng = self.world.rng
        self._submitted += 1
        resources = resources or self._shape()
        length = self._length_s()
        records = rng.randint(2, 9)
        spec: dict[str, Any] = {
            "kind": "run",
            "name": f"r{self._submitted}",
            "project": rng.choice(["default", "default", "other", "third"]),
            "priority": rng.choice([0, 0, 0, 0, 5, -5]),
            "resources": resources,
            "retries": rng.choice(
                [{}, {}, {"user": 1}, {"infrastructure": 0}, {"infrastructure": 8, "user": 2}]
            ),
            "train": {
                "model": "tiny",
                "data": {"corpus": {"kind": "stdlib"}},
                "batch": {"sequences": max(1, resources["gpus"]), "sequence_length": 64},
                "steps": records * STEPS_A_RECORD,
            },
            "env": {
                "SIM_STEPS": str(records * STEPS_A_RECORD),
                "SIM_RECORD_S": f"{length / records:.1f}",
            },
        }
        # Not drawn: what a seed does beside this stays the same.
        spec["preemptible"] = self._submitted % 10 < 10 * self.world.plan.preemptible
        if self._submitted % 10 < 10 * self.world.plan.copies:
            spec["checkpoints"] = {"upload": str(self.world.copies_place)}
        if self._submitted % 3 == 0:
            spec["evaluations"] = [{"name": "e", "command": ["sh", "{checkpoint}"]}]
        if rng.random() < 0.1:
            spec["time_limit_s"] = round(length * rng.uniform(0.3, 1.5), 1)
        if rng.random() < 0.4:
            spec["stall_limit_s"] = round(3 * length / records + 60.0, 1)
            spec["env"]["SIM_STALL"] = "1"
        return spec

    def _submit_run(self) -> None:
        spec = load_spec(self._run_spec())
        run = self.world.server.call(lambda: self.world.server.store.runs.create(spec))
        self.runs.append(run.id)
        resources = spec.resources
        self.world.note(f"submitted {run.id} {resources.gpus} GPUs {resources.nodes} nodes")
        self.world.count("runs")

    def _submit_sweep(self) -> None:
        rng = self.world.rng
        run = self._run_spec({"gpus": 1})
        for key in ("kind", "name", "project"):
            run.pop(key)
        tpe = rng.random() < 0.15
        trials = rng.randint(2, 8)
        raw: dict[str, Any] = {
            "kind": "sweep",
            "name": f"s{self._submitted}",
            "project": rng.choice(["default", "other"]),
            "metric": {"name": "val/loss", "goal": "minimize"},
            "method": "tpe" if tpe else "list",
            "run": run,
            "max_concurrent": rng.choice([None, 1, 2, 3]),
        }
        if tpe:
            raw["trials"] = 12
            raw["parameters"] = {"train.optimizer.lr": {"min": 0.001, "max": 0.1}}
        else:
            raw["points"] = [{"train.optimizer.lr": 0.001 * (n + 1)} for n in range(trials)]
        if rng.random() < 0.4:
            raw["pruning"] = {"name": "median", "min_steps": STEPS_A_RECORD}
        if rng.random() < 0.2:
            raw["max_failed"] = 2
        spec = load_spec(raw)
        assert isinstance(spec, SweepSpec)
        trials_ = expand(spec)
        sweep = self.world.server.call(lambda: self.world.server.store.sweeps.create(spec, trials_))
        self.sweeps[sweep.id] = spec.max_concurrent
        self.world.verbs.launched(sweep.id, spec)
        self.world.note(f"submitted sweep {sweep.id}")
        self.world.count("sweeps")

    # ----------------------------------------------------------------------------- requests

    def _request_later(self) -> None:
        mean = 3600.0 / (self.world.plan.people * max(1.0, self.world.plan.gpus / 16))
        self.world.after(self.world.rng.expovariate(1.0 / mean), "person", self._request)

    def _request(self) -> None:
        if self.active:
            kind = self.world.rng.choice(REQUESTS)
            self.attempt(getattr(self, f"_{kind}"))
            self._request_later()

    def _some(self, states: set[RunState]) -> str | None:
        """Choose a run in one of these states."""
        server = self.world.server
        found = server.call(lambda: server.store.runs.by_state(states))
        return self.world.rng.choice(found).id if found else None

    def _desire(self, run_id: str | None, desired: Desired) -> None:
        if run_id is None:
            return
        server = self.world.server
        self.world.note(f"person: {desired.value} {run_id}")
        verb = {
            Desired.CANCEL: requests.cancel_run,
            Desired.PAUSE: requests.pause_run,
            Desired.RUN: requests.resume_run,
        }[desired]
        server.call(lambda: verb(server.context, server.store.runs.get(run_id)))

    def _cancel(self) -> None:
        self._desire(self._some({RunState.QUEUED, RunState.PAUSED, *ACTIVE}), Desired.CANCEL)

    def _pause(self) -> None:
        self._desire(self._some({RunState.QUEUED, *ACTIVE}), Desired.PAUSE)

    def _resume(self) -> None:
        run_id = self._some({RunState.PAUSED, RunState.STOPPING})
        if run_id is None:
            return
        server = self.world.server
        run = server.call(lambda: server.store.runs.get(run_id))
        if run.state == RunState.PAUSED or run.desired == Desired.PAUSE:
            self._desire(run_id, Desired.RUN)

    def _save(self) -> None:
        run_id = self._some({RunState.RUNNING})
        if run_id is not None:
            server = self.world.server
            server.call(lambda: server.store.requests.order_checkpoint(run_id))

    def _retry(self) -> None:
        run_id = self._some({RunState.FAILED})
        if run_id is None:
            return
        server = self.world.server
        self.world.note(f"person: retry {run_id}")
        server.call(lambda: requests.retry_run(server.context, server.store.runs.get(run_id)))

    def _exclude(self) -> None:
        node = self.world.rng.choice(self.world.nodes).name
        self.world.note(f"person: exclude {node}")
        self.world.server.call(lambda: self.world.server.dispatcher.exclude_node(node, "a person"))

    def _readmit(self) -> None:
        self.readmit(self.world.rng.choice(self.world.nodes).name)

    def readmit(self, node: str) -> None:
        self.world.note(f"person: readmit {node}")
        self.world.server.call(lambda: self.world.server.dispatcher.readmit_node(node))

    def _readmit_all(self) -> None:
        for node in self.world.nodes:
            self.attempt(lambda name=node.name: self.readmit(name))

    def _cancel_sweep(self) -> None:
        if not self.sweeps or self.world.rng.random() < 0.7:
            return
        sweep_id = self.world.rng.choice(sorted(self.sweeps))
        server = self.world.server
        self.world.note(f"person: cancel sweep {sweep_id}")
        server.call(
            lambda: requests.cancel_sweep(server.context, server.store.sweeps.get(sweep_id))
        )

    def _retry_sweep(self) -> None:
        if not self.sweeps:
            return
        sweep_id = self.world.rng.choice(sorted(self.sweeps))
        server = self.world.server
        self.world.note(f"person: retry sweep {sweep_id}")

        def act() -> None:
            operation = requests.retry_sweep(server.context, server.store.sweeps.get(sweep_id))
            once(server.store, None, operation, status=200)
            server.dispatcher.wake()

        server.call(act)

    def settle(self) -> None:
        """Stop acting; readmit every node, and let most of the paused runs go on.

        Of runs that take days, most of those that wait are cancelled: the rest is to end soon.
        """
        self.active = False
        server = self.world.server
        self._readmit_all()
        self.world.node_ends.settle()
        self.world.verbs.settle()
        # The last faults may exclude a node after that.
        self.world.after(READMITTED_S, "readmit", self._readmit_all)
        if self.world.plan.pace > 1.0:
            for run in server.call(lambda: server.store.runs.by_state({RunState.QUEUED}))[5:]:
                self.attempt(lambda run=run: self._desire(run.id, Desired.CANCEL))
        for run in server.call(lambda: server.store.runs.by_state({RunState.PAUSED})):
            if self.world.rng.random() < 0.7:
                self.attempt(lambda run=run: self._desire(run.id, Desired.RUN))
