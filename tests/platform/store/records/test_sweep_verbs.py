"""Actions on sweeps: archive, retry, extend with a repeated key, rejections."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing.api import SWEEP_SPEC, api_client, begin, end, ingest, line, started
from lehr_trainer.contract import layout


@pytest.fixture
def api(tmp_path: Path):
    with api_client(tmp_path / "home") as (api, client):
        yield api, client


def launched(client, **changes) -> dict:
    answer = client.post("/api/v1/sweeps", json={"spec": {**SWEEP_SPEC, **changes}})
    assert answer.status_code == 201, answer.text
    return answer.json()


def ended(api_, trials, state: RunState = RunState.COMPLETED) -> None:
    for trial in trials:
        run_id = trial["run"]["id"]
        attempt = begin(api_.store, run_id)
        record = {"path": "attempt-1/checkpoints/step-00000005", "size_bytes": 10, "digest": "d"}
        ingest(api_.store, attempt, started() + line("checkpoint", step=5, **record))
        folder = api_.settings.home / "runs" / run_id / record["path"]
        folder.mkdir(parents=True)
        (folder / layout.MANIFEST).write_bytes(b"0123456789")
        end(api_.store, run_id, state)


def test_sweep_is_archived_and_unarchived_with_its_runs(api):
    api_, client = api
    sweep = launched(client)
    path = f"/api/v1/sweeps/{sweep['id']}"
    refused = client.post(f"{path}/archive")
    assert refused.status_code == 409
    assert "3 of its runs have not ended" in refused.json()["detail"]
    ended(api_, sweep["trials"])
    assert client.post(f"{path}/archive").json()["archived"]
    assert client.post(f"{path}/archive").status_code == 200
    assert client.get("/api/v1/sweeps").json()["total"] == 0
    assert client.get("/api/v1/runs").json()["total"] == 0
    assert not client.post(f"{path}/unarchive").json()["archived"]
    assert client.get("/api/v1/runs").json()["total"] == 3


def test_a_failed_trial_whose_run_was_deleted_gets_a_new_run(api):
    api_, client = api
    sweep = launched(client)
    ended(api_, sweep["trials"], RunState.FAILED)
    gone = sweep["trials"][1]["run"]["id"]
    client.post(f"/api/v1/runs/{gone}/seeds", json={"n": 1}).raise_for_status()
    client.delete(f"/api/v1/runs/{gone}").raise_for_status()
    again = client.post(f"/api/v1/sweeps/{sweep['id']}/retry").json()
    runs = [trial["run"]["id"] for trial in again["trials"]]
    assert runs[0] == sweep["trials"][0]["run"]["id"]
    assert runs[1] != gone
    assert {trial["run"]["state"] for trial in again["trials"]} == {"queued"}
    assert [one["number"] for one in again["repetitions"]] == [2]


# ------------------------------------------------------------------- what a sweep may not be


def test_valid_sweep_metrics_are_those_that_the_trainer_logs():
    import re

    from lehr.specs.methods import METRICS

    folder = Path(layout.__file__).parent.parent
    logged_names = set()
    for name in (
        "metrics_logger",
        "runtime/environment",
        "evaluate",
        "diagnostics/diagnostics_logger",
    ):
        text = (folder / f"{name}.py").read_text()
        logged_names |= set(re.findall(r'"((?:train|val|memory)/[a-z0-9_]+)"', text))
    assert logged_names
    assert logged_names <= set(METRICS)


_HALVES = [{"tokens": 12_800}, {"tokens": 12_800, "batch": {"sequences": 8}}]


@pytest.mark.parametrize(
    ("other", "logged"),
    [
        ({"train.batch.sequences": 8, "train.steps": 50}, (25, 50)),
        ({"train.stages": _HALVES, "train.steps": 75}, (50, 75)),
    ],
)
def test_trials_with_different_batches_are_compared_at_equal_tokens(api, other, logged):
    api_, client = api
    trials = [{"train.batch.sequences": 4, "train.steps": 100}, other]
    sweep = launched(client, method="list", parameters={}, points=trials)
    for trial, steps in zip(sweep["trials"], ((50, 100), logged), strict=True):
        attempt = begin(api_.store, trial["run"]["id"])
        for step, loss in zip(steps, (3.5, 3.0), strict=True):
            values = {"val/loss": loss - (0.1 if steps == logged else 0.0)}
            ingest(api_.store, attempt, line("evaluation", step=step, tokens=1, values=values))
    found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert found["compared_at_step"] is None
    assert found["compared_at_tokens"] == 100 * 4 * 64
    assert [trial["rank"] for trial in found["trials"]] == [2, 1]
    assert [trial["step"] for trial in found["trials"]] == [100, logged[1]]
