"""Checkpoints over HTTP: served in parts, verified, deleted; what nodes report of their copies."""

from __future__ import annotations

import shutil

import pytest

from lehr.checkpoints.copies import Copy, Folder
from lehr.errors import Conflict, NotFound
from lehr.faces.client.checkpoints import download
from lehr.faces.client.transport import Transport
from lehr.specs import load_spec
from lehr_testing.api import (
    RUN_SPEC,
    TOKEN,
    attempt_token,
    begin,
    end,
    ingest,
    line,
    served,
    started,
    submit,
)
from lehr_testing.buckets import make_checkpoint


def path_of(step: int) -> str:
    return f"attempt-1/checkpoints/step-{step:08d}"


def saved(api_, steps=(5, 10)) -> str:
    """Create a running run with checkpoints at these steps; return its id."""
    place = f"file://{api_.settings.home}/shared"
    run = api_.store.runs.create(load_spec({**RUN_SPEC, "checkpoints": {"upload": place}}))
    attempt = begin(api_.store, run.id)
    ingest(api_.store, attempt, started())
    for step in steps:
        save(api_, run.id, step)
    return run.id


def save(api_, run_id: str, step: int) -> None:
    folder = api_.settings.home / "runs" / run_id / path_of(step)
    digest = make_checkpoint(folder, step=step)
    record = {"path": path_of(step), "size_bytes": 1010, "digest": digest, "reason": "interval"}
    ingest(api_.store, f"{run_id}-1", line("checkpoint", step=step, **record))


def report(client, run_id: str, *copies: dict) -> dict:
    headers = {"Authorization": f"Bearer {attempt_token(run_id)}", "Lehr-Protocol": "1"}
    url = f"/api/v1/attempts/{run_id}-1/copies"
    answer = client.post(url, json={"copies": list(copies)}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def copy_at(api_, run_id: str, step: int) -> dict:
    """The checkpoint copied to a folder; what its uploader would report."""
    url = f"file://{api_.settings.home}/shared/{run_id}/{path_of(step)}"
    with Folder(api_.settings.home / "runs" / run_id / path_of(step)) as held:
        Copy(url).write(held)
    return {"path": path_of(step), "url": url, "state": "there"}


def test_files_are_listed_and_served_completely_and_by_range(api):
    api_, client = api
    run = saved(api_)
    base = f"/api/v1/runs/{run}/checkpoints/10/files"
    listed = client.get(base).json()
    assert [file["name"] for file in listed["files"]] == ["model.safetensors", "state.json"]
    content = (api_.settings.home / "runs" / run / path_of(10) / "model.safetensors").read_bytes()
    whole = client.get(f"{base}/model.safetensors")
    assert whole.content == content
    assert "Content-Encoding" not in whole.headers, "weights hardly shrink"
    assert whole.headers["ETag"] == f'"{listed["files"][0]["sha256"]}"'
    for asked, expected in {"0-9": content[:10], "990-": content[990:], "-5": content[-5:]}.items():
        part = client.get(f"{base}/model.safetensors", headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206
        assert part.content == expected
        first = content.find(expected)
        assert part.headers["Content-Range"] == f"bytes {first}-{first + len(expected) - 1}/1000"
    beyond = client.get(f"{base}/model.safetensors", headers={"Range": "bytes=1000-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, "bytes */1000")
    wrong = client.get(f"{base}/model.safetensors", headers={"Range": "bytes=1-2,4-5"})
    assert wrong.status_code == 422
    assert client.get(f"{base}/manifest.json").json()["step"] == 10
    for name in ("model.safetensor", "..%2f..%2fconfig.yaml", "config.yaml"):
        assert client.get(f"{base}/{name}").status_code == 404
    near = client.get(f"/api/v1/runs/{run}/checkpoints/11/files")
    assert near.status_code == 404
    assert near.json()["hint"] == "The nearest is at step 10. It has: 5, 10."


def test_verification_finds_damage_in_each_location(api):
    api_, client = api
    run = saved(api_)
    report(client, run, copy_at(api_, run, 10))
    url = f"/api/v1/runs/{run}/checkpoints/10/verify"
    found = client.post(url).json()
    assert found["ok"]
    assert len(found["places"]) == 2
    (api_.settings.home / "runs" / run / path_of(10) / "model.safetensors").write_bytes(b"x" * 1000)
    found = client.post(url).json()
    assert not found["ok"]
    assert [place["ok"] for place in found["places"]] == [False, True]
    assert "model.safetensors is damaged" in found["places"][0]["message"]
    other = api_.settings.home / "runs" / run / path_of(10)
    shutil.rmtree(other)
    make_checkpoint(other, step=10)
    found = client.post(url).json()
    assert "not the recorded one" in found["places"][0]["message"]


def test_removed_copy_stays_removed_until_its_checkpoint_is_saved_again(api):
    """A report may arrive late, or twice."""
    api_, client = api
    run = saved(api_)
    there = copy_at(api_, run, 5)
    report(client, run, there)
    report(client, run, there | {"state": "removed"})
    assert report(client, run, there)["unknown"] == [path_of(5)]
    assert not api_.store.checkpoints.copied(run)
    shutil.rmtree(api_.settings.home / "runs" / run / path_of(5))
    save(api_, run, 5)
    assert report(client, run, there)["unknown"] == []
    assert [point.step for point in api_.store.checkpoints.copied(run)] == [5]


def test_checkpoint_is_deleted_with_its_copy_if_nothing_needs_it(api):
    api_, client = api
    run = saved(api_)
    report(client, run, copy_at(api_, run, 5), copy_at(api_, run, 10))
    base = f"/api/v1/runs/{run}/checkpoints"
    assert "is running" in client.delete(f"{base}/5").json()["detail"]
    end(api_.store, run)
    preview = client.get(f"{base}/5/deletion").json()
    assert (preview["bytes"], len(preview["places"]), preview["deleted"]) == (2 * 1010, 2, False)
    assert client.delete(f"{base}/5").json() == {**preview, "deleted": True}
    assert client.delete(f"{base}/5").status_code == 404
    left = sorted(p.name for p in api_.settings.home.rglob("step-*"))
    assert left == ["step-00000010"] * 2
    [gone, there] = client.get(base).json()
    assert (gone["copy_state"], there["copy_state"]) == ("removed", "there")
    # The whole run takes the other along.
    assert client.get(f"/api/v1/runs/{run}/deletion").json()["copies_bytes"] == 1010
    client.delete(f"/api/v1/runs/{run}").raise_for_status()
    assert not list(api_.settings.home.rglob("step-*"))


def test_fork_can_start_from_a_copy_alone(api):
    api_, client = api
    run = saved(api_)
    url = f"/api/v1/runs/{run}/fork"
    changes = {"step": 10, "changes": {"train.steps": 200}}
    shutil.rmtree(api_.settings.home / "runs" / run / path_of(10))
    assert client.post(url, json=changes).status_code == 409
    save_again = api_.settings.home / "runs" / run / path_of(10)
    make_checkpoint(save_again, step=10)
    report(client, run, copy_at(api_, run, 10))
    shutil.rmtree(save_again)
    assert client.post(url, json=changes).status_code == 201


def test_download_resumes_after_a_break_and_rejects_damaged_files(tmp_path):
    with served(tmp_path / "home") as (api_, address):
        run = saved(api_)
        transport = Transport(address, TOKEN, timeout_s=30)
        source = api_.settings.home / "runs" / run / path_of(10)
        target = tmp_path / "have"
        part = tmp_path / "have.part"
        part.mkdir()
        content = (source / "model.safetensors").read_bytes()
        (part / "model.safetensors").write_bytes(content[:600])
        seen: list[tuple[int, int]] = []
        download(transport, run, 10, target, progress=lambda *now: seen.append(now))
        assert {p.name: p.read_bytes() for p in target.iterdir()} == {
            p.name: p.read_bytes() for p in source.iterdir()
        }
        assert seen[0][0] == 600
        assert seen[-1][0] == seen[-1][1]
        with pytest.raises(Conflict, match="already exists"):
            download(transport, run, 10, target)
        with pytest.raises(NotFound, match="step 11"):
            download(transport, run, 11, tmp_path / "other")
        part.mkdir()
        (part / "model.safetensors").write_bytes(b"x" * 600)
        shutil.rmtree(target)
        with pytest.raises(Conflict, match="arrived damaged"):
            download(transport, run, 10, target, attempt=1)
        assert not target.exists()
        transport.close()


def test_checkpoints_and_samples_are_listed_with_best_and_latest(store, client):
    run = submit(client)
    attempt = begin(store, run["id"])
    ingest(store, attempt, started())
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5)):
        one = {"step": step, "path": path_of(step), "size_bytes": 5, "digest": "d"}
        ingest(store, attempt, line("checkpoint", **one, val_loss=loss))
    ingest(store, attempt, line("checkpoint_removed", step=10, path=path_of(10)))
    ingest(store, attempt, line("sample", step=20, prompt="The ", text="end"))
    found = client.get("/api/v1/runs/one/checkpoints").json()
    assert [(c["step"], c["best"], c["latest"]) for c in found] == [
        (10, False, False),
        (20, True, False),
        (30, False, True),
    ]
    assert found[0]["removed_at"] is not None
    [sample] = client.get("/api/v1/runs/one/samples").json()
    assert (sample["step"], sample["prompt"], sample["text"]) == (20, "The ", "end")
