"""Rollouts for tests: their runs "train" by records written into the store, sound or with a bug."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from lehr.control.lifecycle import Desired, RunState
from lehr.specs import RolloutSpec, RunSpec, load_spec, stages
from lehr.store import Store
from lehr.store.tables import RolloutRow, RunRow
from lehr_testing.groups import Groups
from lehr_testing.stores import begin, ingest, line
from lehr_trainer.planning.counts import predicted_first_loss
from lehr_trainer.planning.memory import training_memory

H100 = "NVIDIA H100 80GB HBM3"
TRAIN: dict[str, Any] = {
    "model": "tiny",
    "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
    "batch": {"sequences": 16, "sequence_length": 64},
    "steps": 200,
}
ALL_RUNS = [
    (1, "train", "r-cpu"),
    (1, "resumed", "r-cpu-resumed"),
    (2, "train", "r-one-gpu"),
    (2, "whole", "r-one-gpu-whole"),
    (2, "resumed", "r-one-gpu-resumed"),
    (3, "train", "r-two-gpus"),
    (3, "whole", "r-two-gpus-whole"),
    (3, "resumed", "r-two-gpus-resumed"),
    (4, "train", "r-all"),
]
"""The runs of the rollout of ``spec()``, in order: number of the stage, role, name."""


def spec(*, gpus: int = 4, train: Mapping[str, Any] | None = None, **more: Any) -> RolloutSpec:
    found = load_spec(
        {
            "kind": "rollout",
            "name": "r",
            "run": {"resources": {"gpus": gpus}, "train": {**deepcopy(TRAIN), **(train or {})}},
            **more,
        }
    )
    assert isinstance(found, RolloutSpec)
    return found


def plain(**more: Any) -> dict[str, Any]:
    """The spec as a user writes it; the caller may change it."""
    run = {"resources": {"gpus": 4}, "train": deepcopy(TRAIN)}
    return {"kind": "rollout", "name": "r", "run": run, **more}


def create(store: Store, of: RolloutSpec) -> RolloutRow:
    return store.rollouts.create(of, [stage.name for stage in stages(of)])


class Bug:
    """How a run differs from a sound one; ``None`` means no difference."""

    def __init__(
        self,
        *,
        loss: Callable[[int, float], float] | None = None,
        mfu: float | None = None,
        peak_gb: float | None = None,
        weights: str = "",
        fails_with: str | None = None,
    ) -> None:
        self.loss, self.mfu, self.peak_gb = loss, mfu, peak_gb
        self.weights, self.fails_with = weights, fails_with


SOUND = Bug()


class World:
    """A store, its controller, and trainings that run when a test calls them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs_dir = store.home / "runs"
        self.controller = Groups(store, self.runs_dir)
        store.subscribe(self.controller.changed)

    def restart(self) -> None:
        """Replace the controller by a new one that has only the record."""
        self.controller = Groups(self.store, self.runs_dir)
        self.store.subscribe(self.controller.changed)
        self.controller.enqueue_all()

    def waiting(self) -> list[RunRow]:
        self.controller.tick()
        queued = self.store.runs.by_state([RunState.QUEUED])
        own = self.store.rollouts.of_runs([run.id for run in queued])
        return [run for run in queued if run.id in own]

    def play(self, bugs: Mapping[str, Bug] | None = None) -> list[str]:
        """Train queued runs until none is left; return their names in order."""
        trained = []
        while waiting := self.waiting():
            [run] = waiting
            found = (bugs or {}).get(run.name, SOUND)
            self.train(run, found)
            trained.append(run.name)
        return trained

    def train(self, run: RunRow, bug: Bug = SOUND, *, upto: int | None = None) -> str:
        """Start a queued run and train it to its end, or up to a step."""
        attempt = begin(self.store, run.id, resume_from=run.resume_from)
        of = RunSpec.model_validate(run.spec)
        on_gpu = of.resources.gpus > 0
        device = H100 if on_gpu else "cpu"
        first = int(run.resume_from.rpartition("-")[2]) if run.resume_from else 0
        record = line("started", attempt=1, device=device, total_steps=of.train.steps)
        if first:
            record += line("resumed", step=first, checkpoint=run.resume_from)
        every, last = of.train.checkpoint.every, of.train.steps
        for step in range(first + 1, (upto or last) + 1):
            values = _values(of, step, bug, on_gpu=on_gpu)
            record += line("metrics", float(step), step=step, tokens=step * 100, values=values)
            if (every and step % every == 0) or step == last:
                record += self._save(run, of, step, bug)
        ingest(self.store, attempt.id, record)
        self.store.event_applier.apply(attempt.id)
        if upto is None:
            self.end(run.id, bug.fails_with)
        return attempt.id

    def end(self, run_id: str, fails_with: str | None = None) -> None:
        run = self.store.runs.get(run_id)
        new = RunState.FAILED if fails_with else RunState.COMPLETED
        if run.desired == Desired.CANCEL.value:
            new = RunState.CANCELLED
        if new is RunState.CANCELLED:
            self._move(run, RunState.STOPPING, "cancel")
            run = self.store.runs.get(run_id)
        self._move(run, new, fails_with or "completed")
        self.store.attempts.close(f"{run.id}-{run.attempt}")

    def _move(self, run: RunRow, new: RunState, cause: str) -> None:
        assert self.store.transitions.apply(
            run.id,
            old=RunState(run.state),
            new=new,
            attempt=run.attempt,
            cause=cause,
            message=f"{run.name}: {cause}",
            actor="test",
        )

    def _save(self, run: RunRow, of: RunSpec, step: int, bug: Bug) -> str:
        """Save equal states as equal files: complete and resumed runs differ only in their names."""
        path = f"attempt-1/checkpoints/step-{step:08d}"
        state = f"{of.train.model_dump_json()} {step} {bug.weights}"
        files = {
            name: {"size": 8, "sha256": hashlib.sha256(f"{name} {state}".encode()).hexdigest()}
            for name in ("model.safetensors", "optimizer.safetensors")
        }
        # What a launch has of its own may differ, and does.
        files["state.json"] = {"size": 8, "sha256": hashlib.sha256(run.id.encode()).hexdigest()}
        manifest = {"format": 1, "step": step, "tokens": step, "reason": "interval", "files": files}
        folder = self.runs_dir / run.id / path
        folder.mkdir(parents=True)
        text = json.dumps(manifest)
        for name in files:
            (folder / name).write_text("12345678")
        (folder / "manifest.json").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return line("checkpoint", step=step, path=path, size_bytes=24, digest=digest)


def _values(of: RunSpec, step: int, bug: Bug, *, on_gpu: bool) -> dict[str, Any]:
    start = predicted_first_loss(of.train.model)
    loss = 0.5 * start + 0.5 * start * math.exp(-(step - 1) / 30) + 0.01 * math.sin(step)
    values = {
        "train/loss": loss if bug.loss is None else bug.loss(step, loss),
        "train/grad_norm": 1.0,
        "step_time_s": 0.1,
        "data_wait_s": 0.0001,
    }
    if on_gpu:
        peak = training_memory(of.train, of.resources.ranks).peak
        values["memory/peak_bytes"] = peak if bug.peak_gb is None else bug.peak_gb * 1e9
        values["memory/reserved_bytes"] = values["memory/peak_bytes"] * 1.02
        values["mfu"] = 0.41 if bug.mfu is None else bug.mfu
    else:
        values["memory/rss_bytes"] = 1e9
    # As records write what JSON has no number for.
    return {name: v if math.isfinite(v) else "NaN" for name, v in values.items()}


def states(store: Store, rollout: RolloutRow) -> dict[str, str | None]:
    return {row.name: row.outcome for row in store.rollouts.stages(rollout.id)}


def submitted(store: Store, rollout: RolloutRow) -> list[tuple[int, str, str]]:
    """Stage, role and name of each run, in the order of submission."""
    return [(link.stage, link.role, run.name) for link, run in store.rollouts.runs(rollout.id)]
