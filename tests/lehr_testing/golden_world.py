"""A server with runs in every state, and the command line: what the goldens show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.base import formats
from lehr.control.lifecycle import RunState
from lehr.faces.client import transport
from lehr_testing import cli, goldens, rollouts, seeding
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN

RUN_YAML = json.dumps({**RUN_SPEC, "name": "new"}, indent=1)
SWEEP_YAML = json.dumps({**SWEEP_SPEC, "name": "new-grid"}, indent=1)
ROLLOUT_YAML = json.dumps(rollouts.plain(name="new-rollout"), indent=1)
BIG = json.dumps(
    {
        **RUN_SPEC,
        "name": "big",
        "train": {
            **RUN_SPEC["train"],
            "model": "llama-1b",
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 512, "sequence_length": 2048},
        },
        "resources": {"gpus": 1, "gpu_type": "A100"},
    }
)


class World:
    """A server with runs in every state, and the command line."""

    def __init__(self, api: Any, address: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.api, self.address, self.folder, self._patch = api, address, folder, patch
        self.names = goldens.Names()
        self.names.give(str(folder), "FOLDER")

    def run(self, name: str, **changes: Any) -> Any:
        made = self.api.store.runs.create(seeding.run_spec(name, steps=100, **changes))
        self.names.give(made.id, f"{name:_<8.8}")
        return made

    def ended(self, name: str, state: RunState = RunState.COMPLETED, **more: Any) -> Any:
        made = self.run(name)
        attempt = seeding.start(self.api.store, made)
        attempt.train(range(1, 101))
        attempt.checkpoint(50, val_loss=5.61)
        attempt.checkpoint(100, val_loss=5.204)
        attempt.end(state, 100, **more)
        return made

    def lehr(self, *args: str, stdin: str = "", **environment: str) -> cli.CommandResult:
        """Run a command in this process, as the entry point does."""
        known = {"SERVER": self.address, "TOKEN": TOKEN, "HOME": str(self.folder / "home")}
        given = {f"LEHR_{name}": value for name, value in {**known, **environment}.items()}
        with self._patch.context() as patch:
            patch.setattr(formats, "ago", _ago)
            # A busy machine must not add a notice that the server is slow.
            patch.setattr(transport, "SLOW_S", 60.0)
            return cli.call(*args, cwd=self.folder, stdin=stdin, **given)

    def shown(self, args: list[str], result: cli.CommandResult) -> str:
        """Return a command with its output in the format of a golden."""
        text = f"$ lehr {' '.join(args)}\n{result.stdout}"
        if result.stderr:
            text += f"--- stderr\n{result.stderr}"
        return self.names.text(f"{text}--- exit {result.returncode}")


def a_rollout(world: World, bugs: dict[str, rollouts.Bug] | None = None) -> None:
    """Create a rollout and run it as far as its bugs allow; without bugs it is not started."""
    made = rollouts.create(world.api.store, rollouts.spec(name="up"))
    if bugs is not None:
        lives = rollouts.World(world.api.store)
        lives.controller.enqueue_all()
        lives.play(bugs)
    world.names.give(made.id, "up______")
    name_new(world)


def a_sweep(world: World) -> None:
    """Create a sweep of two runs."""
    spec = seeding.lr_sweep("grid", [3e-4, 1e-3], steps=100)
    sweep, runs = seeding.create_sweep(world.api.store, spec)
    world.names.give(sweep.id, "grid____")
    for number, run in enumerate(runs, start=1):
        world.names.give(run.id, f"grid-{number}__")


def name_new(world: World) -> None:
    """Give a name to the id of each run, rollout and sweep that has none yet."""
    for run in world.api.store.runs.page(archived=None, limit=100).items:
        if run.id not in world.names._given:
            world.names.give(run.id, f"{run.name:_<8.8}")
    for rollout in world.api.store.rollouts.page(limit=100).items:
        if rollout.id not in world.names._given:
            world.names.give(rollout.id, f"{rollout.name:_<8.8}")
    for sweep in world.api.store.sweeps.page(limit=100).items:
        if sweep.id not in world.names._given:
            world.names.give(sweep.id, f"{sweep.name:_<8.8}")


def _ago(at: float | None, _: float | None = None) -> str:
    return formats.NOTHING if at is None else "N s ago"
