"""Fixtures of the tests of the command line: servers for goldens."""

from __future__ import annotations

import json

import pytest

from lehr.control.lifecycle import RunState
from lehr.schemas.cluster import QueueEntry
from lehr_testing import rollouts, seeding
from lehr_testing.api import RUN_SPEC, served
from lehr_testing.golden_world import BIG, ROLLOUT_YAML, RUN_YAML, SWEEP_YAML, World, a_rollout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands of goldens run, with specs."""
    folder = tmp_path_factory.mktemp("cli")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(60):
        (texts / f"{number}.txt").write_text(f"text {number} " * 50)
    texts = {
        "new.yaml": RUN_YAML,
        "new-grid.yaml": SWEEP_YAML,
        "new-rollout.yaml": ROLLOUT_YAML,
        "big.yaml": BIG,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "wrong.yaml").write_text(RUN_YAML.replace('"steps"', '"stpes"'))
    corpus = {"kind": "text", "paths": ["texts"]}
    train = {**RUN_SPEC["train"], "data": {"corpus": corpus, "tokenizer": "byte"}}
    train["validation"] = {"share": 0.1}
    (folder / "texts.yaml").write_text(json.dumps({**RUN_SPEC, "train": train}))
    return folder


@pytest.fixture(scope="module")
def patch():
    """A monkeypatch that a whole file uses."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def world(folder, patch):
    """A server for commands that only read."""
    with served(folder / "home") as (api, address):
        world = World(api, address, folder, patch)
        one = world.ended("one")
        other = world.run("other", lr=9e-4)
        seeding.start(api.store, other, gpus=(1,)).train(range(1, 101))
        world.ended("crashed", RunState.FAILED, cause="oom", message="out of GPU memory")
        sweep, runs = seeding.create_sweep(
            api.store, seeding.lr_sweep("grid", [3e-4, 1e-3, 1e-2], steps=100)
        )
        world.names.give(sweep.id, "grid____")
        for number, run in enumerate(runs, start=1):
            world.names.give(run.id, f"grid-{number}__")
            attempt = seeding.start(api.store, run, gpus=(number,))
            attempt.train(range(1, 101))
            attempt.end(RunState.COMPLETED, 100)
        waits = world.run("waits", gpus=4)
        api.dispatcher.waiting = [
            QueueEntry(
                position=1,
                run_id=waits.id,
                name="waits",
                gpus=4,
                nodes=1,
                gpu_type="H100",
                priority=0,
                reason="waits for 4 x H100; next in line at priority 0",
                queued_at=1_760_000_000.0,
            )
        ]
        a_rollout(world, {"up-one-gpu": rollouts.Bug(mfu=0.04)})
        assert one.id
        yield world


@pytest.fixture
def acting(tmp_path_factory, folder, patch):
    """A server of its own for commands that change something."""
    home = tmp_path_factory.mktemp("acting")
    with served(home / "home") as (api, address):
        world = World(api, address, folder, patch)
        world.names.give(str(home), "ACTING")
        yield world
