"""Sweeps over HTTP beyond the grid: rejected completely, retried, extended."""

from __future__ import annotations

import copy
import shlex

import pytest

from lehr import Client
from lehr.control.lifecycle import RunState
from lehr_testing import cli
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    api_client,
    begin,
    end,
    evaluation,
    ingest,
    metrics,
    served,
    started,
)
from lehr_testing.statements import transactions, written_statements

LR = {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform_values"}


def spec(**fields):
    return {**copy.deepcopy(SWEEP_SPEC), **fields}


def submit(client, **fields):
    answer = client.post("/api/v1/sweeps", json={"spec": spec(**fields)})
    assert answer.status_code == 201, answer.text
    return answer.json()


def act(client, sweep, verb, body=None, status=200):
    answer = client.post(f"/api/v1/sweeps/{sweep['id']}/{verb}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def rates(sweep):
    return [trial["parameters"]["train.optimizer.lr"] for trial in sweep["trials"]]


def finish(store, sweep, state=RunState.COMPLETED, cause="completed"):
    for trial in sweep["trials"]:
        run = store.runs.get(trial["run"]["id"])
        if run.state == "queued":
            begin(store, run.id, run.attempt + 1)
            steps = [(RunState.STARTING, RunState.RUNNING), (RunState.RUNNING, state)]
            for old, new in steps:
                assert store.transitions.apply(
                    run.id,
                    old=old,
                    new=new,
                    attempt=run.attempt + 1,
                    cause=cause,
                    actor="dispatcher",
                )


def test_random_trials_are_drawn_at_submission_and_can_be_extended(api):
    api_, client = api
    sweep = submit(client, method="random", trials=3, parameters={"train.optimizer.lr": LR})
    assert (sweep["method"], len(sweep["trials"]), sweep["trials_remaining"]) == ("random", 3, 0)
    finish(api_.store, sweep)
    more = act(client, sweep, "extend", {"trials": 2})
    assert rates(more)[:3] == rates(sweep)
    assert [trial["run"]["name"] for trial in more["trials"]][3:] == ["grid-4", "grid-5"]
    assert more["counts"] == {"completed": 3, "queued": 2}
    assert more["spec"]["trials"] == 5
    assert api_.dispatcher.woken


def test_finished_grid_is_extended_by_new_trials(store, client):
    sweep = submit(client, seeds=[0, 1])
    finish(store, sweep)
    more = act(client, sweep, "extend", {"parameters": {"train.optimizer.lr": [0.1]}})
    assert rates(more)[6:] == [0.1, 0.1]
    assert more["parameters"] == ["train.optimizer.lr", "train.seed"]
    assert more["counts"] == {"completed": 6, "queued": 2}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"trials": 3}, 422, "trials cannot be added to grid: its method is grid."),
        ({}, 422, "nothing to add to grid."),
        ({"parameters": {"train.optimizer.lrr": [1]}}, 422, "is not a parameter of grid."),
        ({"parameters": {"train.optimizer.lr": [1e-3]}}, 422, "has 0.001 twice."),
        ({"parameters": {"train.optimizer.lr": ["fast"]}}, 422, "must be a number."),
        ({"parameter": {}}, 422, "parameter"),
    ],
)
def test_invalid_extension_is_rejected_completely(client, body, status, says):
    sweep = submit(client)
    answer = client.post(f"/api/v1/sweeps/{sweep['id']}/extend", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert len(client.get(f"/api/v1/sweeps/{sweep['id']}").json()["trials"]) == 3


def test_retry_restarts_the_failed_trials(store, client):
    sweep = submit(client)
    act(client, sweep, "retry", status=409)
    finish(store, sweep, RunState.FAILED, "exception")
    again = act(client, sweep, "retry")
    assert again["counts"] == {"queued": 3}
    assert [trial["run"]["id"] for trial in again["trials"]] == [
        trial["run"]["id"] for trial in sweep["trials"]
    ]


def test_stopped_sweep_has_a_reason_and_continues_on_request(store, client):
    sweep = submit(client)
    store.sweep_progress.stop(sweep["id"], "enough of it", actor="sweep")
    stopped = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert (stopped["stopped"], stopped["state"]) == ("enough of it", "finished")
    assert stopped["notes"][0] == "Stopped: enough of it"
    again = act(client, sweep, "retry")
    assert (again["stopped"], again["counts"]) == (None, {"queued": 3})
    assert len(store.sweeps.runs(sweep["id"])) == 6


def test_a_tpe_sweep_is_not_finished_before_its_last_point_unless_cancelled(store, client):
    sweep = submit(client, method="tpe", trials=12, parameters={"train.optimizer.lr": LR})
    assert (len(sweep["trials"]), sweep["trials_remaining"]) == (10, 2)
    finish(store, sweep)
    seen = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert seen["state"] == "running"
    assert seen["notes"][0] == (
        "TPE has yet to choose 2 of 12 points. The first 10 were drawn at random."
    )
    cancelled = act(client, sweep, "cancel")
    assert (cancelled["state"], cancelled["trials_remaining"]) == ("finished", 0)
    more = act(client, sweep, "extend", {"trials": 1})
    assert (more["state"], more["trials_remaining"]) == ("running", 3)


def complete(store, run_id):
    for old, new in [("starting", "running"), ("running", "completed")]:
        assert store.transitions.apply(
            run_id,
            old=RunState(old),
            new=RunState(new),
            attempt=1,
            cause="completed",
            actor="dispatcher",
        )


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_sweep_is_launched_and_cancelled_in_one_transaction_each(
    store, client, method, monkeypatch
):
    # The audit of a request is a small transaction of its own.
    monkeypatch.setattr(store.audit, "add", lambda *_, **__: None)
    with written_statements(store) as launched:
        body = {"spec": spec(method=method, trials=20, parameters={"train.optimizer.lr": LR})}
        key = {"Idempotency-Key": "k"}
        sweep = client.post("/api/v1/sweeps", json=body, headers=key).json()
    with written_statements(store) as cancelled:
        found = act(client, sweep, "cancel")
    assert (transactions(launched), transactions(cancelled)) == (1, 1)
    assert set(found["counts"]) == {"cancelled"}
    assert (found["state"], found["trials_remaining"]) == ("finished", 0)
    assert found["stopped"] == ("cancelled" if method == "tpe" else None)


def test_the_extension_that_a_verdict_names_is_accepted_as_it_stands(tmp_path):
    with served(tmp_path / "home") as (api_, address):
        client = Client(address, token=TOKEN)
        made = []
        for name in ("by-client", "by-command"):
            sweep = client.sweep({**SWEEP_SPEC, "name": name})
            for trial in sweep.trials:
                loss = 2 - trial.parameters["train.optimizer.lr"]
                ingest(api_.store, begin(api_.store, trial.run.id), evaluation(100, loss))
                complete(api_.store, trial.run.id)
            made.append(sweep.refresh())
        first, second = made
        advice = first.detail.next_trials
        first.extend(advice.parameters)
        assert first.refresh().detail.next_trials is None
        lehr, *words = shlex.split(second.detail.next_trials.command)
        assert lehr == "lehr"
        done = cli.call("--server", address, *words, cwd=tmp_path, LEHR_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        for sweep in made:
            rates = [t.parameters["train.optimizer.lr"] for t in sweep.refresh().trials]
            assert rates == [1e-4, 1e-3, 1e-2, 0.1]


def test_route_records_once_for_each_key_and_refuses_bad_numbers(tmp_path):
    with api_client(tmp_path / "home") as (_, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        url = f"/api/v1/runs/{run}/seeds"
        made = [client.post(url, json={"n": 2}, headers={"Idempotency-Key": "k"}) for _ in "ab"]
        assert [one.status_code for one in made] == [201, 201]
        assert made[0].json()["id"] == made[1].json()["id"]
        assert made[0].json()["counts"] == {"queued": 2}
        refused = client.post(url, json={"n": 21})
        assert refused.status_code == 422
        assert refused.json()["detail"] == "n is 21; it must be 1 to 20."
        assert client.post(url, json={"n": "2"}).status_code == 422
        assert client.post("/api/v1/runs/nothing/seeds", json={}).status_code == 404
        assert client.get("/api/v1/sweeps").json()["total"] == 1


ANNEAL = "train.stages.1.optimizer.lr"
STAGED = {
    **{name: value for name, value in RUN_SPEC["train"].items() if name != "steps"},
    "stages": [{"name": "main", "tokens": 90 * 256}, {"tokens": 10 * 256, "schedule": "constant"}],
}


def test_stages_before_the_swept_one_are_trained_once(store, client):
    run = {**SWEEP_SPEC["run"], "train": STAGED}
    sweep = submit(client, parameters={ANNEAL: {"values": [1e-4, 1e-3]}}, run=run)
    assert (sweep["state"], sweep["counts"], sweep["steps_total"]) == (
        "waiting",
        {"queued": 2},
        110,
    )
    [trunk] = {trial["run"]["forked_from"] for trial in sweep["trials"]}
    assert [one["name"] for one in client.get("/api/v1/runs").json()["items"]] == [
        "grid-2",
        "grid-1",
        "grid-trunk",
    ]
    attempt = begin(store, trunk)
    ingest(store, attempt, started() + metrics(1, 45))
    shown = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert (shown["state"], shown["steps_made"]) == ("running", 45)
    [note] = [one for one in shown["notes"] if "grid-trunk" in one]
    assert note == (
        f"The trials start from the end of grid-trunk ({trunk}), which trains the 90 steps that "
        "they share once. It is running."
    )
    end(store, trunk, RunState.FAILED, "boom")
    trial = sweep["trials"][0]["run"]["id"]
    assert store.transitions.apply(
        trial, old=RunState.QUEUED, new=RunState.FAILED, attempt=0, cause="trunk", actor="sweep"
    )
    refused = client.post(f"/api/v1/runs/{trial}/retry")
    assert refused.status_code == 409
    assert refused.json()["hint"] == f"Retry that first: lehr retry {trunk}"
    assert client.post(f"/api/v1/runs/{trunk}/retry").status_code == 200
    assert client.post(f"/api/v1/runs/{trial}/retry").status_code == 200
    ingest(store, begin(store, trial), started() + metrics(91, 95))
    shown = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
    assert shown["steps_made"] == 45 + 5
