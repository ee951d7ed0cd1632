"""Archive and delete: removed and kept data, rejections, recovery after a crash."""

from __future__ import annotations

import pytest

from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, Fenced
from lehr.store import Store
from lehr.store.upkeep.integrity import check
from lehr_testing.api import RUN_SPEC, api_client, begin, end, ingest, line, metrics, started


@pytest.fixture
def api(tmp_path):
    with api_client(tmp_path) as pair:
        yield pair


def submit(client, name="one"):
    return client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "name": name}}).json()["id"]


def trained(api_, client, name="one", *, ended=True):
    """Create a run with metrics, a log and a checkpoint with files; return its id."""
    run_id = submit(client, name)
    attempt = begin(api_.store, run_id)
    ingest(api_.store, attempt, started() + metrics(1, 30))
    ingest(api_.store, attempt, b"words\n", name="rank-0.log")
    path = "attempt-1/checkpoints/step-00000010"
    folder = homes.runs_dir(api_.settings.home) / run_id / path
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 10_000)
    record = {"step": 10, "path": path, "size_bytes": 10_000, "digest": "ab" * 32}
    ingest(api_.store, attempt, line("checkpoint", reason="interval", **record))
    if ended:
        end(api_.store, run_id)
    return run_id


def names(client, **params):
    return [run["name"] for run in client.get("/api/v1/runs", params=params).json()["items"]]


def test_archived_run_is_hidden_until_it_is_unarchived(api):
    _, client = api
    run_id = trained(*api)
    for _ in range(2):
        assert client.post(f"/api/v1/runs/{run_id}/archive").json()["archived"] is True
    assert names(client) == []
    assert names(client, archived=True) == ["one"]
    newer = submit(client, "one")
    assert client.get("/api/v1/runs/one").json()["id"] == newer
    assert client.post(f"/api/v1/runs/{run_id}/unarchive").json()["archived"] is False
    asked = [
        event["data"]["request"]
        for event in client.get(f"/api/v1/runs/{run_id}/events").json()
        if event["kind"] == "request"
    ]
    assert asked == ["archive", "unarchive"]


def test_archive_and_delete_require_an_ended_run(api):
    api_, client = api
    run_id = trained(api_, client, ended=False)
    for answer in (
        client.post(f"/api/v1/runs/{run_id}/archive"),
        client.delete(f"/api/v1/runs/{run_id}"),
    ):
        assert answer.status_code == 409
        assert "only ended runs are" in answer.json()["detail"]
    assert client.get(f"/api/v1/runs/{run_id}/metrics").json()


def test_deletion_reports_freed_bytes_first_and_keeps_the_record(api):
    api_, client = api
    run_id, other = trained(*api), trained(*api, name="other")
    preview = client.get(f"/api/v1/runs/{run_id}/deletion").json()
    streams = sum(api_.store.streams.sizes(f"{run_id}-1").values())
    assert preview == {
        "run_id": run_id,
        "name": "one",
        "deleted": False,
        "bytes": streams + 10_002,
        "run_directory_bytes": 10_002,
        "streams_bytes": streams,
        "copies_bytes": 0,
        "checkpoints": 1,
        "notes": [],
    }
    assert client.get(f"/api/v1/runs/{run_id}").json()["archived"] is False
    freed = client.delete(f"/api/v1/runs/{run_id}")
    assert freed.status_code == 200, freed.text
    assert freed.json() == {**preview, "deleted": True}
    home = api_.settings.home
    assert not (homes.runs_dir(home) / run_id).exists()
    assert not (home / "replica" / f"{run_id}-1").exists()

    left = client.get(f"/api/v1/runs/{run_id}").json()
    assert (left["state"], left["archived"]) == ("completed", True)
    assert left["spec"]["train"]["steps"] == 100
    assert left["latest"] == {}
    assert client.get(f"/api/v1/runs/{run_id}/metrics").json() == []
    assert client.get(f"/api/v1/runs/{run_id}/logs").json() == []
    [point] = client.get(f"/api/v1/runs/{run_id}/checkpoints").json()
    assert point["removed_at"] is not None
    messages = [event["message"] for event in client.get(f"/api/v1/runs/{run_id}/events").json()]
    assert f"user requested delete: freed {preview['bytes']:,} bytes" in messages
    assert names(client) == ["other"]
    assert client.get(f"/api/v1/runs/{other}/metrics").json()
    assert check(home) == []
    # Asking again is harmless, and records nothing more.
    assert client.delete(f"/api/v1/runs/{run_id}").json()["bytes"] == 0
    assert len(api_.store.requests.of_run(run_id)) == 1


def test_deleted_run_cannot_be_restored_retried_or_forked(api):
    api_, client = api
    run_id = trained(*api)
    client.delete(f"/api/v1/runs/{run_id}")
    for verb in ("unarchive", "retry", "resume"):
        assert client.post(f"/api/v1/runs/{run_id}/{verb}").status_code == 409
    answer = client.post(f"/api/v1/runs/{run_id}/fork", json={})
    assert "no checkpoint to fork from" in answer.json()["detail"]
    with pytest.raises(Fenced, match="was deleted"):
        api_.store.streams.append(f"{run_id}-1", "events.jsonl", 0, started())
    assert not (api_.settings.home / "replica" / f"{run_id}-1").exists()
    # The shim of an attempt that was out of reach may still report its exit.
    assert api_.dispatcher.on_exit(f"{run_id}-1", {"exit": {"code": 0}, "sizes": {}})["closed"]


def test_a_checkpoint_that_a_fork_needs_is_not_deleted(api):
    api_, client = api
    run_id = trained(*api)
    fork = client.post(f"/api/v1/runs/{run_id}/fork", json={}).json()
    [note] = client.get(f"/api/v1/runs/{run_id}/deletion").json()["notes"]
    assert fork["id"] in note
    answer = client.delete(f"/api/v1/runs/{run_id}")
    assert answer.status_code == 409
    assert f"one-fork-10 ({fork['id']}) will start from it" in answer.json()["detail"]
    assert client.get(f"/api/v1/runs/{run_id}/metrics").json()
    attempt = begin(api_.store, fork["id"])
    record = {
        "step": 20,
        "path": "attempt-1/checkpoints/step-00000020",
        "size_bytes": 1,
        "digest": "ab" * 32,
    }
    ingest(api_.store, attempt, started() + line("checkpoint", reason="interval", **record))
    assert client.delete(f"/api/v1/runs/{run_id}").status_code == 200


def test_run_is_not_deleted_while_its_logs_are_uploaded(api):
    api_, client = api
    run_id = trained(api_, client, ended=False)
    run = api_.store.runs.get(run_id)
    assert api_.store.transitions.apply(
        run_id,
        old=RunState(run.state),
        new=RunState.FAILED,
        attempt=1,
        cause="x",
        actor="dispatcher",
    )
    answer = client.delete(f"/api/v1/runs/{run_id}")
    assert "still being uploaded" in answer.json()["detail"]
    api_.store.attempts.close(f"{run_id}-1")
    assert client.delete(f"/api/v1/runs/{run_id}").status_code == 200


def test_deletion_interrupted_by_a_crash_is_finished_at_the_next_start(tmp_path):
    with api_client(tmp_path) as (api_, client):
        run_id, other = trained(api_, client), trained(api_, client, "other")
        api_.store.runs.mark_deleted(run_id)
        assert api_.store.series.metrics(run_id)
    with Store.open(tmp_path) as store:
        assert store.series.metrics(run_id) == []
        assert not (tmp_path / "replica" / f"{run_id}-1").exists()
        assert store.series.metrics(other)
        with pytest.raises(Conflict, match="was deleted"):
            store.runs.set_archived(run_id, False)
    assert check(tmp_path) == []
