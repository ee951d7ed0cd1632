"""Locations of checkpoints reported by an attempt: only its own are used; no other is touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, api_client, attempt_token, begin, end, line, started
from lehr_testing.buckets import make_checkpoint

STEP = "attempt-1/checkpoints/step-00000005"


@dataclass
class Scene:
    """A running run, and a folder that does not belong to it."""

    api: Any
    client: Any
    run: str
    victim: Path

    @property
    def run_dir(self) -> Path:
        return self.api.settings.home / "runs" / self.run

    def ingest(self, data: bytes) -> None:
        """Send data as its shipper does."""
        answer = self.client.put(
            f"/api/v1/attempts/{self.run}-1/streams/events.jsonl",
            params={"offset": self.api.store.streams.sizes(f"{self.run}-1").get("events.jsonl", 0)},
            content=data,
            headers=self.headers,
        )
        assert answer.status_code == 200, answer.text
        self.api.store.event_applier.apply(f"{self.run}-1")

    def register(self, path: str, step: int = 5) -> None:
        self.ingest(line("checkpoint", step=step, path=path, size_bytes=1, digest="d"))

    def report(self, path: str, url: str) -> Any:
        return self.client.post(
            f"/api/v1/attempts/{self.run}-1/copies",
            json={"copies": [{"path": path, "url": url, "state": "there"}]},
            headers=self.headers,
        )

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {attempt_token(self.run)}", "Lehr-Protocol": "1"}

    def delete_all(self) -> list[Any]:
        """Delete the checkpoint and the run, as a user would."""
        end(self.api.store, self.run)
        return [
            self.client.delete(f"/api/v1/runs/{self.run}/checkpoints/5"),
            self.client.delete(f"/api/v1/runs/{self.run}"),
        ]

    def assert_victim_unchanged(self) -> None:
        assert sorted(p.name for p in self.victim.iterdir()) == [
            "manifest.json",
            "model.safetensors",
            "state.json",
        ]


@pytest.fixture
def scene(tmp_path: Path):
    victim = tmp_path / "victim"
    make_checkpoint(victim, step=5)
    with api_client(tmp_path / "home") as (api, client):
        place = {"checkpoints": {"upload": f"file://{tmp_path}/copies"}}
        run = api.store.runs.create(load_spec({**RUN_SPEC, **place}))
        begin(api.store, run.id)
        scene = Scene(api, client, run.id, victim)
        scene.ingest(started())
        yield scene
        scene.assert_victim_unchanged()


def ask_for_checkpoint(scene: Scene, name: str) -> list[int]:
    base = f"/api/v1/runs/{scene.run}/checkpoints/5"
    answers = [scene.client.get(f"{base}/files"), scene.client.get(f"{base}/files/{name}")]
    return [answer.status_code for answer in answers]


@pytest.mark.parametrize("linked", ["step", "checkpoints", "attempt"])
def test_a_link_out_of_the_run_is_not_followed(scene, linked):
    folder = scene.run_dir / STEP
    made = {"step": folder, "checkpoints": folder.parent, "attempt": folder.parents[1]}[linked]
    made.parent.mkdir(parents=True)
    target = scene.victim
    if linked != "step":
        # The victim is what the rest of the path leads to.
        target = scene.victim.parent / "behind"
        below = target / folder.relative_to(made)
        below.parent.mkdir(parents=True)
        scene.victim.rename(below)
        scene.victim = below
    made.symlink_to(target)
    scene.register(STEP)
    base = f"/api/v1/runs/{scene.run}/checkpoints/5"
    assert scene.client.get(f"{base}/files").status_code == 409
    [verdict] = scene.client.post(f"{base}/verify").json()["places"]
    assert "leads out of the run's directory by a link" in verdict["message"]
    fork = {"step": 5, "changes": {"train.steps": 200}}
    assert scene.client.post(f"/api/v1/runs/{scene.run}/fork", json=fork).status_code == 409
    refused, deleted = scene.delete_all()
    assert refused.status_code == 409
    assert "leads out of the run's directory by a link" in refused.json()["detail"]
    assert deleted.status_code == 200
    assert any("left alone" in note for note in deleted.json()["notes"])
    assert not scene.run_dir.exists()


@pytest.mark.parametrize(
    "url",
    [
        "file://{victim}",
        "file://{copies}/{run}/attempt-1/checkpoints/step-00000006",
        "file://{copies}/{run}/{step}/../../../../../victim",
        "file://{copies}/{run}/{step}/",
        "file://{copies}/another/{step}",
        "s3://bucket/{run}/{step}",
        "sftp://host/{run}/{step}",
        "{victim}",
        "",
    ],
)
def test_copy_outside_the_storage_of_the_spec_is_rejected(scene, url):
    scene.register(STEP)
    copies = scene.victim.parent / "copies"
    given = url.format(victim=scene.victim, copies=copies, run=scene.run, step=STEP)
    answer = scene.report(STEP, given)
    assert answer.status_code == 422
    expected = f"file://{copies}/{scene.run}/{STEP}"
    assert answer.json()["detail"] == f"copies[0].url is {given!r}; this copy lies at {expected}."
    assert scene.api.store.checkpoints.of_run(scene.run)[0].copy_url is None
    assert scene.report(STEP, expected).status_code == 200
    assert scene.api.store.checkpoints.of_run(scene.run)[0].copy_url == expected


def test_link_in_a_copy_does_not_show_a_file_of_the_server(scene):
    """Workers of all machines write to a shared folder of copies; the server's home is not theirs."""
    scene.register(STEP)
    copy = scene.victim.parent / "copies" / scene.run / STEP
    make_checkpoint(copy, step=5)
    assert scene.report(STEP, f"file://{copy}").status_code == 200
    assert ask_for_checkpoint(scene, "state.json") == [200, 200]
    secret = (copy / "state.json").read_bytes()
    (copy / "state.json").unlink()
    (scene.victim.parent / "secret").write_bytes(secret)
    (copy / "state.json").symlink_to(scene.victim.parent / "secret")
    base = f"/api/v1/runs/{scene.run}/checkpoints/5"
    answer = scene.client.get(f"{base}/files/state.json")
    assert secret not in answer.content
    assert answer.status_code == 409
    [verdict] = scene.client.post(f"{base}/verify").json()["places"]
    assert not verdict["ok"]
