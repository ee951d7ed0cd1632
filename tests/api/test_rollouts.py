"""Rollouts over HTTP: rejected completely, recorded once, shown with their evidence."""

from __future__ import annotations

import pytest

from lehr_testing.rollouts import Bug, World, plain

ROLLOUTS = "/api/v1/rollouts"


def launch(client, status=201, key=None, **more):
    headers = {"Idempotency-Key": key} if key else {}
    answer = client.post(ROLLOUTS, json={"spec": plain(**more)}, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def played(api_, bugs=None):
    world = World(api_.store)
    world.controller.enqueue_all()
    return world.play(bugs)


def test_new_rollout_has_all_its_stages_and_no_verdicts(api):
    api_, client = api
    made = launch(client)
    assert (made["state"], made["stage"], made["reason"]) == ("running", "cpu", None)
    assert made["progress"] == dict.fromkeys(["cpu", "one_gpu", "two_gpus", "all"], "waiting")
    assert [stage["gpus"] for stage in made["stages"]] == [0, 1, 2, 4]
    assert {gate["state"] for stage in made["stages"] for gate in stage["gates"]} == {"waiting"}
    assert made["stages"][0]["gates"][0]["expected"].startswith("6.25 \u00b1 0.5 nats: ln(512)")
    assert api_.store.runs.page().total == 0
    assert api_.dispatcher.woken


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"stages": {"one_gp": {}}}, "stages.one_gp is not a field."),
        (
            {"run": {**plain()["run"], "resources": {"gpus": 16}}},
            "run.resources.gpus: needs 16 GPUs; this cluster has 8 x logical GPU.",
        ),
    ],
)
def test_invalid_rollout_is_rejected_before_anything_is_recorded(store, client, spec, message):
    problem = launch(client, status=422, **spec)
    assert problem["code"] == "invalid_spec"
    assert problem["problems"][0]["message"] == message
    assert store.rollouts.page().total == 0


def test_failed_gate_is_shown_with_its_evidence(api):
    api_, client = api
    made = launch(client)
    played(api_, {"r-two-gpus": Bug(loss=lambda step, loss: 2 * loss)})
    found = client.get(f"{ROLLOUTS}/r").json()
    assert (found["state"], found["stage"]) == ("failed", "two_gpus")
    assert found["reason"].startswith("stage two_gpus, first loss: 12.5")
    assert found["progress"] == {
        "cpu": "passed",
        "one_gpu": "passed",
        "two_gpus": "failed",
        "all": "skipped",
    }
    [gate] = [g for s in found["stages"] for g in s["gates"] if g["state"] == "failed"]
    assert gate["name"] == "first_loss"
    assert gate["at_least"] < gate["at_most"] < gate["value"]
    assert (gate["unit"], gate["step"]) == ("nats", 1)
    [two] = [s for s in found["stages"] if s["name"] == "two_gpus"]
    assert gate["run_id"] == two["runs"][0]["run"]["id"]
    assert two["runs"][0]["run"]["rollout_id"] == made["id"]
    assert {g["state"] for g in found["stages"][3]["gates"]} == {"skipped"}
    assert found["run_id"] is None
    [listed] = client.get(ROLLOUTS).json()["items"]
    assert listed == {key: found[key] for key in listed}
    assert "stages" not in listed


def test_passed_rollout_names_its_final_run(api):
    api_, client = api
    launch(client)
    played(api_)
    found = client.get(f"{ROLLOUTS}/r").json()
    assert (found["state"], found["reason"]) == ("passed", None)
    run = client.get(f"/api/v1/runs/{found['run_id']}").json()
    assert (run["name"], run["total_steps"], run["submitted_by"]) == ("r-all", 200, "user")
    assert found["stages"][0]["gpu_seconds"] == 0
    assert any(note.startswith("MFU was not judged in cpu") for note in found["notes"])


def test_cancel_is_idempotent_and_an_ended_rollout_can_be_archived(api):
    _, client = api
    made = launch(client)
    refused = client.post(f"{ROLLOUTS}/{made['id']}/archive")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    for _ in range(2):
        answer = client.post(f"{ROLLOUTS}/{made['id']}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert client.post(f"{ROLLOUTS}/{made['id']}/archive").json()["archived"]
    assert client.get(ROLLOUTS).json()["items"] == []
    assert client.get(f"{ROLLOUTS}?archived=true").json()["total"] == 1
    assert not client.post(f"{ROLLOUTS}/r/unarchive").json()["archived"]
