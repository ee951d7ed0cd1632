"""Sweeps put away, run again, extended twice by one key; what is refused before it is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import SpecError
from lehr.specs import load_spec
from lehr_testing.api import SWEEP_SPEC, api_client, begin, end, line, say, started
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
        say(api_.store, attempt, started() + line("checkpoint", step=5, **record))
        folder = api_.settings.home / "runs" / run_id / record["path"]
        folder.mkdir(parents=True)
        (folder / layout.MANIFEST).write_bytes(b"0123456789")
        end(api_.store, run_id, state)


def test_a_sweep_is_put_away_with_its_runs_and_comes_back(api):
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


def test_deleting_a_sweep_says_first_what_it_frees_and_keeps_the_record(api):
    api_, client = api
    sweep = launched(client)
    path = f"/api/v1/sweeps/{sweep['id']}"
    assert client.delete(path).status_code == 409
    assert "refused for now" in client.get(f"{path}/deletion").json()["notes"][0]
    ended(api_, sweep["trials"])
    weighed = client.get(f"{path}/deletion").json()
    streams = sum(
        sum(api_.store.streams.sizes(f"{trial['run']['id']}-1").values())
        for trial in sweep["trials"]
    )
    assert weighed["bytes"] == streams + 3 * 10
    assert (weighed["runs"], weighed["checkpoints"], weighed["deleted"]) == (3, 3, False)
    assert client.delete(path).json() == {**weighed, "deleted": True}
    assert client.get(path).json()["archived"]
    assert len(client.get(path).json()["trials"]) == 3
    assert not [p for p in (api_.settings.home / "runs").rglob("*") if p.is_file()]
    assert client.post(f"{path}/unarchive").status_code == 409
    assert client.get(f"{path}/deletion").json()["bytes"] == 0


def test_nothing_of_a_sweep_is_deleted_while_a_fork_waits_for_a_part_of_it(api):
    api_, client = api
    sweep = launched(client)
    ended(api_, sweep["trials"])
    source = sweep["trials"][0]["run"]["id"]
    fork = client.post(f"/api/v1/runs/{source}/fork", json={"step": 5})
    assert fork.status_code == 201, fork.text
    refused = client.delete(f"/api/v1/sweeps/{sweep['id']}")
    assert refused.status_code == 409
    assert fork.json()["id"] in refused.json()["detail"]
    assert len([p for p in (api_.settings.home / "runs").rglob("*") if p.is_file()]) == 3


def test_a_failed_trial_whose_run_was_deleted_gets_a_new_run(api):
    api_, client = api
    sweep = launched(client)
    ended(api_, sweep["trials"], RunState.FAILED)
    gone = sweep["trials"][1]["run"]["id"]
    client.delete(f"/api/v1/runs/{gone}").raise_for_status()
    again = client.post(f"/api/v1/sweeps/{sweep['id']}/retry").json()
    runs = [trial["run"]["id"] for trial in again["trials"]]
    assert runs[0] == sweep["trials"][0]["run"]["id"]
    assert runs[1] != gone
    assert {trial["run"]["state"] for trial in again["trials"]} == {"queued"}


def test_one_key_extends_and_retries_once(api):
    api_, client = api
    sweep = launched(client)
    path = f"/api/v1/sweeps/{sweep['id']}"
    more = {"parameters": {"train.optimizer.lr": [1e-1]}}
    answers = [
        client.post(f"{path}/extend", json=more, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].headers["Idempotency-Replayed"] == "true"
    assert answers[0].json() == answers[1].json()
    assert len(client.get(path).json()["trials"]) == 4
    ended(api_, client.get(path).json()["trials"], RunState.FAILED)
    for _ in range(2):
        again = client.post(f"{path}/retry", headers={"Idempotency-Key": "r"})
        assert again.status_code == 200, again.text
    assert client.post(f"{path}/retry").status_code == 409
    other = client.post(f"{path}/extend", json=more, headers={"Idempotency-Key": "r"})
    assert other.status_code == 409


# ------------------------------------------------------------------- what a sweep may not be


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("val_loss", "val/loss"),
        ("loss", "val/loss"),
        ("val/los", "val/loss"),
        ("token_per_s", "tokens_per_s"),
    ],
)
def test_a_metric_that_no_run_logs_is_met_with_the_one_that_was_meant(name, near):
    with pytest.raises(SpecError) as caught:
        load_spec({**SWEEP_SPEC, "metric": {"name": name}})
    assert f"metric.name is {name}, which no run logs." in str(caught.value)
    assert f"Did you mean {near}?" in str(caught.value)


def test_a_refused_sweep_says_that_nothing_was_recorded(tmp_path):
    from lehr.cli.sweep import sweep

    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({**SWEEP_SPEC, "metric": {"name": "val_loss"}}))
    with pytest.raises(SpecError) as caught:
        sweep(str(path))
    assert str(caught.value).endswith("Nothing was recorded.")
    assert "Did you mean val/loss?" in str(caught.value)


def test_metrics_of_parts_may_rank_a_sweep():
    load_spec({**SWEEP_SPEC, "metric": {"name": "params/first_layer/update_ratio"}})


def test_the_metrics_that_a_sweep_may_have_are_those_that_the_trainer_logs():
    import re

    from lehr.specs.comparability import METRICS

    folder = Path(layout.__file__).parent.parent
    said = set()
    for name in (
        "metrics_logger",
        "runtime/environment",
        "evaluate",
        "diagnostics/diagnostics_logger",
    ):
        text = (folder / f"{name}.py").read_text()
        said |= set(re.findall(r'"((?:train|val|memory)/[a-z0-9_]+)"', text))
    assert said
    assert said <= set(METRICS)


def test_trials_train_on_equally_many_tokens_unless_that_is_meant():
    batches = {"train.batch.sequences": {"values": [4, 8]}}
    with pytest.raises(SpecError) as caught:
        load_spec({**SWEEP_SPEC, "parameters": batches})
    assert "train on different numbers of tokens" in str(caught.value)
    assert "25,600" in str(caught.value)
    assert "51,200" in str(caught.value)
    load_spec({**SWEEP_SPEC, "parameters": batches, "budget": "any"})
    trials = [
        {"train.batch.sequences": 4, "train.steps": 100},
        {"train.batch.sequences": 8, "train.steps": 50},
    ]
    load_spec({**SWEEP_SPEC, "parameters": {}, "method": "list", "points": trials})


def test_trials_of_unlike_batches_are_compared_at_equal_tokens(api):
    api_, client = api
    trials = [
        {"train.batch.sequences": 4, "train.steps": 100},
        {"train.batch.sequences": 8, "train.steps": 50},
    ]
    sweep = launched(client, method="list", parameters={}, points=trials)
    for trial, steps in zip(sweep["trials"], (100, 50), strict=True):
        attempt = begin(api_.store, trial["run"]["id"])
        for share in (0.5, 1.0):
            step = round(steps * share)
            values = {"val/loss": 4.0 - share - (0.1 if steps == 50 else 0.0)}
            say(api_.store, attempt, line("evaluation", step=step, tokens=1, values=values))
    found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert found["compared_at_step"] is None
    assert found["compared_at_tokens"] == 100 * 4 * 64
    assert [trial["rank"] for trial in found["trials"]] == [2, 1]
    assert [trial["step"] for trial in found["trials"]] == [100, 50]
