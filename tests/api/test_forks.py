"""Forks: from which checkpoint, what may change, what is recorded; over HTTP, without a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lehr.base import home as homes
from lehr.control.forks import choose, fork_spec
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, begin, end, ingest, line, started
from lehr_trainer.configs.optimizer import MuonConfig

SOURCE = load_spec(RUN_SPEC).model_dump(mode="json")


@dataclass
class Point:
    attempt: int
    step: int


POINTS = [Point(1, 5), Point(1, 10), Point(1, 20), Point(2, 10), Point(2, 15)]


def test_fork_uses_the_checkpoint_of_the_newest_attempt():
    assert choose("a", POINTS, None) == Point(2, 15)
    assert choose("a", POINTS, 10) == Point(2, 10)
    assert choose("a", POINTS, 20) == Point(1, 20)


@pytest.mark.parametrize(("step", "near"), [(0, 5), (12, 10), (13, 15), (999, 20)])
def test_step_without_a_checkpoint_is_rejected_with_the_nearest_one(step, near):
    with pytest.raises(NotFound) as caught:
        choose("a", POINTS, step)
    assert caught.value.message == f"a has no checkpoint at step {step}."
    assert caught.value.hint == f"The nearest is at step {near}. It has: 5, 10, 15, 20."
    with pytest.raises(NotFound, match="no checkpoint to fork from"):
        choose("a", [], step)


# ------------------------------------------------------------------------------------ over HTTP


@pytest.fixture
def source(api):
    """An ended run with checkpoints at 10 and 20 whose files exist."""
    api_, client = api
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started())
    for step in (10, 20):
        path = f"attempt-1/checkpoints/step-{step:08d}"
        folder = homes.runs_dir(api_.settings.home) / run["id"] / path
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        ingest(
            api_.store,
            attempt,
            line(
                "checkpoint",
                step=step,
                path=path,
                size_bytes=1000,
                digest="ab" * 32,
                reason="interval",
            ),
        )
    end(api_.store, run["id"])
    return run


def test_fork_is_recorded_with_its_source(api, source):
    api_, client = api
    woken = api_.dispatcher.woken
    body = {"step": 10, "changes": {"train.steps": 60}, "provenance": {"host": "n1"}}
    answer = client.post("/api/v1/runs/one/fork", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["state"], made["forked_from"]) == ("queued", source["id"])
    assert (made["name"], made["total_steps"]) == ("one-fork-10", 60)
    assert made["provenance"] == {
        "host": "n1",
        "fork": {
            "run": source["id"],
            "name": "one",
            "attempt": 1,
            "step": 10,
            "digest": "ab" * 32,
            "changes": {"train.steps": 60},
        },
    }
    path = homes.runs_dir(api_.settings.home) / source["id"]
    row = api_.store.runs.get(made["id"])
    assert row.resume_from == str(path / "attempt-1/checkpoints/step-00000010")
    assert api_.dispatcher.woken == woken + 1


def test_a_failed_fork_is_retried_only_while_the_checkpoint_that_it_starts_from_exists(api, source):
    """Found by the simulation (seed 20008): the retry began from a checkpoint that was removed."""
    api_, client = api
    fork = client.post("/api/v1/runs/one/fork", json={"step": 10}).json()
    for number in (1, 2):
        begin(api_.store, fork["id"], number)
        end(api_.store, fork["id"], RunState.FAILED)
        if number == 1:
            assert client.post(f"/api/v1/runs/{fork['id']}/retry").json()["state"] == "queued"
    path = "attempt-1/checkpoints/step-00000010"
    ingest(api_.store, f"{source['id']}-1", line("checkpoint_removed", step=10, path=path))
    answer = client.post(f"/api/v1/runs/{fork['id']}/retry")
    assert answer.status_code == 409
    assert answer.json()["detail"].endswith(f"{path} of {source['id']}, was removed.")
    assert answer.json()["hint"].endswith(f"lehr checkpoints ls {source['id']}")
    assert api_.store.runs.get(fork["id"]).state == "failed"


def test_fork_may_start_its_optimizer_without_the_state_of_the_checkpoint(api, source):
    _, client = api
    body = {"changes": {"train.optimizer.name": "muon", "train.optimizer.momentum": 0.9}}
    answer = client.post("/api/v1/runs/one/fork", json=body)
    assert answer.status_code == 422
    assert "the optimizer adamw, and muon cannot go on from it" in answer.text
    made = client.post("/api/v1/runs/one/fork", json={**body, "optimizer_state": "fresh"}).json()
    train = made["spec"]["train"]
    assert (train["optimizer_state"], train["optimizer"]["momentum"]) == ("fresh", 0.9)
    assert train["optimizer"]["lr"] == MuonConfig().lr, "the rate of another optimizer"
    # The state of the fork's own checkpoints is kept.
    assert fork_spec(made["spec"], {}, step=30).own.optimizer_state == "keep"
    answer = client.post("/api/v1/runs/one/fork", json={**body, "optimizer_state": "none"})
    assert answer.status_code == 422


def test_invalid_fork_records_nothing(api, source):
    api_, client = api
    for body, status, message in (
        ({"step": 12}, 404, "no checkpoint at step 12"),
        ({"step": -1}, 422, "step"),
        ({"changes": {"train.lr": 1}}, 422, "train.lr"),
        ({"changes": {"resources.gpus": 16, "train.batch.sequences": 16}}, 422, "needs 16 GPUs"),
        ({"changes": {"train.data.corpus.paths": ["a"]}}, 422, "relative"),
    ):
        answer = client.post(f"/api/v1/runs/{source['id']}/fork", json=body)
        assert answer.status_code == status, answer.text
        assert message in answer.text
    folder = homes.runs_dir(api_.settings.home) / source["id"]
    (folder / "attempt-1/checkpoints/step-00000010/manifest.json").unlink()
    answer = client.post(f"/api/v1/runs/{source['id']}/fork", json={"step": 10})
    assert answer.status_code == 409
    assert "are gone" in answer.json()["detail"]
    assert client.get("/api/v1/runs").json()["total"] == 1
