"""Comparisons over HTTP: the metric and its goal, batches, groups."""

from __future__ import annotations

import pytest

from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, begin, end, evaluation, ingest, metrics, started
from lehr_testing.trained import train

DOCS, FEW = "6705cb68" * 8, "6dc60039" * 8


@pytest.fixture
def trained(store, client):
    """Makes a run that was evaluated on a held-out set; its id."""

    def make(name, loss, held_out):
        answer = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "name": name}})
        run_id = answer.json()["id"]
        train(store, run_id, loss, held_out=held_out)
        return run_id

    return make


def compare(client, *runs, **query):
    answer = client.get("/api/v1/compare", params={"run": runs, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("metric", "declared", "goal", "words"),
    [
        ("val/accuracy", None, "maximize", "looks better"),
        ("train/grad_norm", "maximize", "maximize", "looks better"),
        ("train/grad_norm", None, None, "looks higher in train/grad_norm"),
    ],
)
def test_a_comparison_has_the_goal_of_its_sweep_or_of_the_name(
    store, client, metric, declared, goal, words
):
    declaration = {"metric": {"name": metric, "goal": declared}} if declared else {}
    sweep = client.post("/api/v1/sweeps", json={"spec": {**SWEEP_SPEC, **declaration}}).json()
    ids = [trial["run"]["id"] for trial in sweep["trials"][:2]]
    for run_id, value in zip(ids, (0.2, 0.7), strict=True):
        ingest(store, begin(store, run_id), started() + metrics(1, 2, **{metric: value}))
    found = compare(client, *ids, metric=metric)
    assert (found["goal"], found["gaps"][0]["sentence"].count(words)) == (goal, 1)
    [known] = [
        one for one in client.get(f"/api/v1/runs/{ids[0]}/metrics").json() if one["name"] == metric
    ]
    assert known["goal"] == (None if metric == "train/grad_norm" else goal)


def test_without_a_metric_one_that_all_runs_have_is_compared_and_named(store, client, trained):
    program = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "name": "program"}})
    attempt = begin(store, program.json()["id"])
    ingest(store, attempt, started() + metrics(1, 2))
    found = compare(client, trained("docs", 3.0, DOCS), program.json()["id"])
    assert found["metric"] == "train/loss"
    assert found["notes"][0] == (
        "train/loss is compared, which all these runs have; some have val/loss."
    )
    assert all(one["value"] is not None for one in found["results"])


def test_the_first_step_with_other_batches_is_shown(store, client):
    ids = []
    for name, digests in (("base", [1, 2, 3, 4]), ("same", [1, 2, 3, 4]), ("other", [1, 2, 9, 4])):
        spec = {**RUN_SPEC, "name": name}
        ids.append(client.post("/api/v1/runs", json={"spec": spec}).json()["id"])
        attempt = begin(store, ids[-1])
        ingest(store, attempt, started())
        for step, digest in enumerate(digests, start=1):
            ingest(store, attempt, metrics(step, step, **{"data/digest": digest + 2.0**51}))
    found = compare(client, *ids, metric="train/loss")
    assert found["batches"] == "different"
    assert [one["batches"] for one in found["results"]] == ["same", "same", "different"]
    assert [one["batches_differ_from"] for one in found["results"]] == [None, None, 3]
    assert found["batches_note"] == (
        "the same as base at all 4 compared steps: same; other batches than base: other (from "
        "step 3 on)"
    )
    assert "base and other trained on different batches from step 3 on" in found["notes"][0]
    assert compare(client, *ids[:2], metric="train/loss")["batches"] == "same"


def test_runs_of_several_lengths_are_compared_at_their_ends(store, client):
    ids = []
    for name, last in (("short", 5), ("long", 9), ("training", 9)):
        spec = {**RUN_SPEC, "name": name}
        ids.append(client.post("/api/v1/runs", json={"spec": spec}).json()["id"])
        attempt = begin(store, ids[-1])
        ingest(store, attempt, started() + metrics(1, last) + evaluation(last, 4 - last / 10))
        if name != "training":
            end(store, ids[-1])
    found = compare(client, *ids, x="end")
    assert [one["value"] for one in found["results"]] == [3.5, 3.1, None]
    assert [one["incomparable"] for one in found["results"]] == [None, None, "has not ended"]
    assert compare(client, *ids)["common_x"] is None, "no step that all were evaluated at"


def test_runs_are_grouped_by_config_metric_or_both(api, trained):
    ids = [trained(name, loss, DOCS) for name, loss in (("a", 3.0), ("b", 2.5), ("c", 2.0))]
    ids.append(trained("few-tokens", 1.0, FEW))
    found = compare(api[1], *ids, by="val/loss<2.5")
    assert [
        (one["name"], one["run_ids"], one["count"], one["mean"]) for one in found["groups"]
    ] == [
        ("val/loss from 2.5", ids[:2], 2, 2.75),
        # Its value is of another held-out set than the baseline's.
        ("val/loss below 2.5", ids[2:], 1, 2.0),
    ]
    assert found["groups"][0]["deviation"] == pytest.approx(0.3536, abs=1e-4)
    [one] = compare(api[1], *ids, by="lr,project")["groups"]
    assert (one["name"], one["run_ids"]) == ("lr 3.0e-4 · default", ids)
    assert compare(api[1], *ids)["groups"] == []
    answer = api[1].get("/api/v1/compare", params={"run": ids, "by": "val/los"})
    assert answer.status_code == 404
    assert answer.json()["hint"] == "Did you mean val/loss?"
