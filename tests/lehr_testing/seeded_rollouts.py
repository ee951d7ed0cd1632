"""Rollouts in a real store, changed as the dispatcher would change them."""

from __future__ import annotations

from typing import Any

from lehr.analysis.gates import expected
from lehr.control.lifecycle import RunState
from lehr.specs import RolloutSpec, load_spec, stages
from lehr.store import Store
from lehr.store.tables import GateVerdict, RolloutRow, RunRow
from lehr_testing import seeding

SPEC: dict[str, Any] = {
    "kind": "rollout",
    "name": "llama-1b",
    "run": {"resources": {"gpus": 8}, "train": seeding.train(steps=1000)},
    "stages": {"two_gpus": {"steps": 60}},
}


class Seeded:
    """A rollout whose stages are submitted, trained and judged by hand."""

    def __init__(self, store: Store, name: str = "llama-1b") -> None:
        spec = load_spec({**SPEC, "name": name})
        assert isinstance(spec, RolloutSpec)
        self.store = store
        self.planned = {stage.name: stage for stage in stages(spec)}
        self.rollout: RolloutRow = store.rollouts.create(spec, list(self.planned))

    def submit(self, name: str, role: str = "train") -> RunRow:
        stage = self.planned[name]  # type: ignore[index]
        spec = stage.runs[role]  # type: ignore[index]
        run = self.store.rollout_progress.submit_run(self.rollout.id, stage.number, role, spec)
        assert run is not None
        return run

    def trained(self, name: str, steps: int = 60) -> RunRow:
        run = self.submit(name)
        attempt = seeding.start(self.store, run)
        attempt.train(range(1, steps + 1), logs=False)
        attempt.end(RunState.COMPLETED, steps)
        return run

    def judge(self, name: str, run: RunRow, failed: str | None = None) -> None:
        """Pass every gate except ``failed``; gates that need a GPU are not judged."""
        stage = self.planned[name]  # type: ignore[index]
        found = []
        for gate, settings in stage.gates.items():
            if not settings.enabled:
                continue
            verdict = "failed" if gate == failed else "passed"
            if name == "cpu" and gate in {"memory", "mfu"}:
                verdict = "not_judged"
            wanted = expected(gate, stage)
            found.append(
                GateVerdict(
                    gate=gate,
                    verdict=verdict,
                    expected=wanted.text,
                    seen="24.42 nats at step 1" if verdict == "failed" else "as it should be",
                    value=24.42 if verdict == "failed" else None,
                    unit=wanted.unit,
                    run_id=run.id,
                    step=1,
                )
            )
        self.store.rollout_progress.record_verdicts(self.rollout.id, stage.number, found)

    def passed(self, name: str) -> RunRow:
        run = self.trained(name)
        self.judge(name, run)
        assert self.store.rollout_progress.pass_stage(self.rollout.id, self.planned[name].number)  # type: ignore[index]
        return run

    def stopped(self, name: str, gate: str = "first_loss") -> RunRow:
        run = self.submit(name)
        attempt = seeding.start(self.store, run, gpus=(0, 1))
        attempt.train(range(1, 4), logs=False)
        self.judge(name, run, failed=gate)
        reason = "first loss: 24.42 nats at step 1"
        stage = self.planned[name].number  # type: ignore[index]
        assert self.store.rollout_progress.end(self.rollout.id, "failed", reason, stage=stage)
        attempt.end(RunState.CANCELLED, 3)
        return run
