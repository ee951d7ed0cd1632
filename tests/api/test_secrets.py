"""Secrets over REST: only names are shown, specs name them, and no record has a value."""

from __future__ import annotations

import pytest

from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC
from lehr_testing.dispatching import Bench

VALUE = "a-very-secret-value"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()


def put(client, name, value=VALUE):
    return client.put(f"/api/v1/secrets/{name}", json={"value": value})


def test_secret_is_set_listed_and_removed_without_its_value(client, tmp_path):
    made = put(client, "hf-read")
    assert made.status_code == 200
    assert (made.json()["name"], made.json()["changed_by"]) == ("hf-read", "user")
    assert [one["name"] for one in client.get("/api/v1/secrets").json()["secrets"]] == ["hf-read"]
    answers = [made, client.get("/api/v1/secrets"), client.get("/api/v1/audit")]
    answers.append(client.delete("/api/v1/secrets/hf-read"))
    assert all(VALUE not in answer.text for answer in answers)
    assert client.delete("/api/v1/secrets/hf-read").status_code == 404
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a b", VALUE, "not a name for a secret"),
        ("-a", VALUE, "not a name for a secret"),
        ("s" * 65, VALUE, "not a name for a secret"),
        ("empty", "", "has 0 bytes; it must have 1 to 32,768 bytes"),
        ("long", "x" * 32_769, "has 32,769 bytes; it must have 1 to 32,768 bytes"),
        ("nul", f"{VALUE}\0", "has a NUL character"),
    ],
)
def test_bad_secret_is_refused_without_quoting_it(client, name, value, message):
    answer = put(client, name, value)
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert VALUE not in answer.text
    assert client.get("/api/v1/secrets").json() == {"secrets": []}


def test_spec_that_names_an_unknown_secret_is_refused_as_a_whole(client):
    put(client, "hf-read")
    spec = RUN_SPEC | {"secrets": {"HF_TOKEN": "hf-reed"}}
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "secrets.HF_TOKEN"
    assert "there is no secret 'hf-reed'" in problem["message"]
    assert problem["hint"] == "Did you mean hf-read?"
    sweep = SWEEP_SPEC | {"run": {**SWEEP_SPEC["run"], "secrets": {"HF_TOKEN": "hf-reed"}}}
    answer = client.post("/api/v1/sweeps", json={"spec": sweep})
    assert answer.json()["problems"][0]["path"] == "run.secrets.HF_TOKEN"
    assert client.get("/api/v1/runs").json()["items"] == []
    spec["secrets"] = {"HF_TOKEN": "hf-read"}
    made = client.post("/api/v1/runs", json={"spec": spec})
    assert made.status_code == 201
    assert made.json()["spec"]["secrets"] == {"HF_TOKEN": "hf-read"}


def test_search_is_refused_for_a_value_that_only_a_later_trial_may_have(client):
    put(client, "hf")
    parameters = {
        "secrets.TOKEN": {"values": ["hf", "later"]},
        "train.optimizer.lr": {"min": 1e-4, "max": 1.0},
    }
    spec = SWEEP_SPEC | {"method": "tpe", "trials": 1, "parameters": parameters}
    loaded = (load_spec({**spec, "seed": seed}) for seed in range(100))
    spec["seed"] = next(
        one.seed for one in loaded if next(one.all_points())["secrets.TOKEN"] == "hf"
    )
    refused = client.post("/api/v1/sweeps", json={"spec": spec})
    assert [one["path"] for one in refused.json()["problems"]] == ["run.secrets.TOKEN"]
    put(client, "later")
    made = client.post("/api/v1/sweeps", json={"spec": spec})
    assert made.status_code == 201, made.text
    client.delete("/api/v1/secrets/later")
    extended = client.post(f"/api/v1/sweeps/{made.json()['id']}/extend", json={"trials": 2})
    assert extended.status_code == 422, extended.text
    assert [one["path"] for one in extended.json()["problems"]] == ["run.secrets.TOKEN"]


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ({"HF TOKEN": "hf"}, "not the name of an environment variable"),
        ({"PYTHONPATH": "hf"}, "is set by Lehr itself"),
        ({"PYTHONUSERBASE": "hf"}, "changes where Python finds modules"),
        ({"HF_TOKEN": f"{VALUE} {VALUE}"}, "the name of a secret, not its value"),
        ({"IN_BOTH": "hf"}, "is also in env"),
    ],
)
def test_bad_names_are_refused_without_quoting_a_value(client, secrets, message):
    put(client, "hf")
    spec = RUN_SPEC | {"env": {"IN_BOTH": "x"}, "secrets": secrets}
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    assert message in answer.json()["problems"][0]["message"]
    assert VALUE not in answer.text


def test_only_the_launch_has_the_value(bench):
    from lehr.store.secret_store import SecretStore

    secrets = SecretStore(bench.home)
    secrets.set("hf-read", VALUE, by="user", at=0.0)
    run = bench.waiting(secrets={"HF_TOKEN": "hf-read"})
    bench.tick()
    [launch] = [fields["launch"] for op, fields in bench.asked if op == "start"]
    assert launch["secrets"] == {"HF_TOKEN": VALUE}
    del launch["secrets"]
    assert VALUE not in str(launch)
    assert VALUE not in str(bench.store.runs.get(run).spec)


def test_run_whose_secret_was_removed_fails_once_with_the_reason(bench):
    run = bench.waiting(secrets={"HF_TOKEN": "hf-read"})
    bench.tick()
    bench.tick()
    row = bench.store.runs.get(run)
    assert (row.state, row.attempt) == ("failed", 1)
    assert "a secret that it needs was removed" in row.reason
    assert "there is no secret 'hf-read'" in row.reason
