"""The transfer of a learning rate over HTTP, by the client and by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.control.lifecycle import RunState
from lehr.faces.client import Client
from lehr.specs import RunSpec, load_spec
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served

RATES = (3e-4, 1e-3, 3e-3, 6e-3, 1.2e-2)
TARGET: dict[str, Any] = {
    "kind": "run",
    "name": "big",
    "train": {**seeding.train(steps=400), "model": "llama-1b"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("transfer")
    with served(home / "home") as (api, address):
        _, runs = seeding.create_sweep(api.store, seeding.lr_sweep("grid", RATES, steps=100))
        for number, run in enumerate(runs):
            attempt = seeding.start(api.store, run, gpus=(number,))
            attempt.train(range(1, 101))
            attempt.end(RunState.COMPLETED, 100)
        yield api, address, home


@pytest.fixture
def client(server):
    with Client(server[1], TOKEN) as client:
        yield client


def test_client_gets_the_rate_of_a_dict_a_file_and_a_spec(client, tmp_path: Path) -> None:
    sweep = client.find_sweep("grid")
    file = tmp_path / "big.yaml"
    file.write_text(json.dumps(TARGET))
    spec = load_spec(TARGET)
    assert isinstance(spec, RunSpec)
    views = [sweep.transfer(given) for given in (TARGET, file, str(file), spec)]
    assert len({view.model_dump_json() for view in views}) == 1
    found = views[0]
    assert found.rate == pytest.approx(found.from_rate * 0.5**0.5, rel=0.01)
    loaded = load_spec(found.yaml)
    assert isinstance(loaded, RunSpec)
    assert loaded.train.optimizer.lr == found.rate


def call(server, *args: str) -> Any:
    given = {"LEHR_SERVER": server[1], "LEHR_TOKEN": TOKEN, "LEHR_HOME": str(server[2] / "home")}
    return cli.call(*args, cwd=server[2], stdin="", **given)


def test_command_writes_a_file_that_submit_accepts(server) -> None:
    (server[2] / "target.yaml").write_text(json.dumps(TARGET))
    args = ("transfer", "grid", "--to", "target.yaml", "-o", "carried.yaml", "resources.gpus=4")
    result = call(server, *args)
    assert result.returncode == 0, result.stderr
    assert "lehr submit carried.yaml" in result.stdout
    spec = load_spec(server[2] / "carried.yaml")
    assert isinstance(spec, RunSpec)
    assert spec.resources.gpus == 4
    again = call(server, *args, "--json")
    assert json.loads(again.stdout)["transfer"]["rate"] == spec.train.optimizer.lr
    checked = call(server, "submit", "carried.yaml", "--dry-run", "train.batch.micro_batch=1")
    assert checked.returncode == 0, checked.stderr
