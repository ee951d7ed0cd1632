"""The mirror in W&B, offline: its files contain each record of the run once."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.app.presenters import Presenter
from lehr.app.wandb_mirror.controller import MirrorController
from lehr.app.wandb_mirror.session import _Session
from lehr.app.wandb_mirror.state_files import AttemptFeed, MirrorRequest, Notes, RunFeed
from lehr.control.lifecycle import RunState
from lehr.specs.run import WandbTracking
from lehr.store.scores import add_score
from lehr_testing import stores
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    Api,
    api_client,
    begin,
    end,
    finished,
    ingest,
    line,
    started,
)
from lehr_testing.stores import fresh_store, run_spec
from lehr_testing.waiting import until
from lehr_testing.wandb_files import assert_equal_series, read
from lehr_trainer import extras


@contextmanager
def mirrored_home(home: Path) -> Iterator[Any]:
    """An API whose client is at ``.client``; the plugin of the suite has removed W&B's key."""
    with api_client(home) as (api, client):
        api.client = client
        yield api


@contextmanager
def mirroring(api: Api) -> Iterator[MirrorController]:
    controller = MirrorController(api.store, api.services.presenter, api.settings.home, every_s=0.1)
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def until_mirrored(api: Any, run_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status = api.client.get(f"/api/v1/runs/{run_id}").json()["wandb"]
        return status if status and status["state"] == "done" else None

    return until(look, within_s=120, what=f"the mirror of {run_id}")


OFFLINE = {"tracking": {"wandb": {"mode": "offline", "tags": ["extra"], "job_type": "train"}}}


@pytest.fixture(scope="module")
def mirrored_api(tmp_path_factory):
    """A server whose mirror runs for the whole module: its process takes seconds to start."""
    home = tmp_path_factory.mktemp("home")
    with mirrored_home(home) as api, mirroring(api):
        yield api


@pytest.fixture
def api(tmp_path):
    with mirrored_home(tmp_path / "home") as api:
        yield api


def submitted(api, **changes) -> str:
    """Submit a run that is mirrored offline; return its id."""
    answer = api.client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **OFFLINE, **changes}})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def steps(first, last, **values):
    return b"".join(
        line(
            "metrics",
            step=step,
            tokens=step * 256,
            values={"train/loss": 10.0 / step, **{k: v(step) for k, v in values.items()}},
        )
        for step in range(first, last + 1)
    )


def files(api, run_id):
    folder = Notes(api.settings.home, run_id).folder
    return [read(path) for path in sorted(folder.rglob("*.wandb"))]


def test_mirror_has_history_config_summary_samples_and_checkpoints(mirrored_api):
    api = mirrored_api
    run_id = submitted(api, tags=["mine"], project="baseline", notes="why")
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started())
    ingest(api.store, attempt, line("warning", code="loss_spike", message="it rose", step=3))
    begun = Notes(api.settings.home, run_id).progress
    until(begun, within_s=60, what="the mirror to begin")
    ingest(api.store, attempt, steps(1, 10, odd=lambda s: "NaN" if s == 4 else "Infinity"))
    ingest(api.store, attempt, line("evaluation", step=10, tokens=9, values={"val/loss": 1.25}))
    ingest(api.store, attempt, line("sample", step=10, prompt="I am", text="told"))
    ingest(
        api.store,
        attempt,
        line(
            "checkpoint",
            step=10,
            path="attempt-1/checkpoints/step-00000010",
            size_bytes=7,
            digest="d" * 64,
            val_loss=1.25,
        ),
    )
    ingest(api.store, attempt, line("sample", step=10, prompt="You", text="are"))
    ingest(api.store, attempt, finished(10))
    end(api.store, run_id)
    status = until_mirrored(api, run_id)
    [mirrored] = files(api, run_id)
    assert_equal_series(api, run_id, mirrored.series)
    assert status["text"] == "offline, complete"
    assert status["folder"] == str(mirrored.path.parent)
    run = mirrored.run
    assert (run.run_id, run.display_name, run.project) == (run_id, "one", "baseline")
    assert (run.notes, run.job_type, list(run.tags)) == ("why", "train", ["mine", "extra"])
    assert mirrored.config["train"]["optimizer"]["lr"] == 3e-4
    assert mirrored.config["lehr"]["run"] == run_id
    digest = api.store.runs.get(run_id).spec["code"]["digest"]
    assert digest
    assert mirrored.config["lehr"]["code"] == digest
    assert mirrored.summary["val/loss"] == 1.25
    assert mirrored.summary["odd"] == "Infinity"
    assert mirrored.summary["lehr/state"] == "completed"
    assert mirrored.table("samples") == {
        "columns": ["step", "attempt", "prompt", "text"],
        "data": [[10, 1, "I am", "told"], [10, 1, "You", "are"]],
    }
    [checkpoint] = [a for a in mirrored.artifacts if a.type == "model"]
    [entry] = checkpoint.manifest.contents
    assert entry.ref == f"lehr://{run_id}/attempt-1/checkpoints/step-00000010"
    assert not entry.local_path
    assert set(checkpoint.aliases) == {"step-10", "best", "latest"}
    assert [alert.text for alert in mirrored.alerts] == ["it rose"]
    assert mirrored.exit_code == 0
    axis = {metric.glob_name: metric.step_metric for metric in mirrored.metrics}
    assert axis["*"] == "step"


def test_a_resumed_run_is_one_wandb_run_with_the_points_that_count(mirrored_api):
    api = mirrored_api
    run_id = submitted(api)
    first = begin(api.store, run_id)
    ingest(api.store, first, started() + steps(1, 8))
    until(
        lambda: (p := Notes(api.settings.home, run_id).progress()) and p.rows == 8,
        within_s=60,
        what="eight rows",
    )
    assert api.store.transitions.apply(
        run_id,
        old=RunState.RUNNING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        actor="dispatcher",
    )
    api.store.attempts.close(first)
    second = begin(api.store, run_id, 2)
    ingest(api.store, second, started(2) + line("resumed", step=5, checkpoint="attempt-1/x"))
    ingest(api.store, second, steps(6, 12, other=lambda s: s * 0.5) + finished(12))
    end(api.store, run_id)
    until_mirrored(api, run_id)
    [mirrored] = files(api, run_id)
    assert mirrored.run.run_id == run_id
    assert_equal_series(api, run_id, mirrored.series)
    assert [row["attempt"] for row in mirrored.rows] == [1] * 5 + [2] * 7


def test_scores_of_evaluations_reach_the_wandb_run_at_their_step_also_after_its_end(mirrored_api):
    api = mirrored_api
    run_id = submitted(api)
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started() + steps(1, 4))
    early = line("evaluation", step=2, tokens=512, values={"task/own/accuracy": 0.5}).decode()
    add_score(api.store, attempt, early.strip(), mark=early.strip())
    until(lambda: rows_of(api, run_id) == 5, within_s=120, what="the first score")
    ingest(api.store, attempt, steps(5, 6) + finished(6))
    end(api.store, run_id)
    until_mirrored(api, run_id)
    late = line("metrics", step=4, tokens=1024, values={"lm/acc": 0.25}).decode()
    add_score(api.store, attempt, late.strip(), mark=late.strip())
    until(lambda: rows_of(api, run_id) == 8, within_s=120, what="the last score")
    until_mirrored(api, run_id)
    [mirrored] = files(api, run_id)
    assert_equal_series(api, run_id, mirrored.series)
    assert mirrored.series("lm/acc") == ([4], [0.25])
    assert mirrored.summary["lm/acc"] == 0.25


def rows_of(api, run_id) -> int:
    progress = Notes(api.settings.home, run_id).progress()
    return progress.rows if progress else 0


def test_online_mirror_that_begins_again_sends_the_rows_in_the_same_order(tmp_path):
    path = tmp_path / "replica" / "r-1"
    path.mkdir(parents=True)
    events = steps(1, 4)
    two = len(b"".join(events.splitlines(keepends=True)[:2]))
    (path / "events.jsonl").write_bytes(events)
    (path / "scores.jsonl").write_bytes(line("metrics", step=2, tokens=0, values={"lm/acc": 0.5}))
    notes, request = Notes(tmp_path, "r"), MirrorRequest(settings=WandbTracking(), at=1.0)
    notes.write(request)
    scores = (path / "scores.jsonl").stat().st_size
    sent = []
    for seen, size in ((0, two), (2, len(events))):
        attempt = AttemptFeed(number=1, open=True, size=size, scores=scores)
        feed = RunFeed(run_id="r", name="r", project="p", state="running", config={})
        feed = feed.model_copy(update={"attempts": [attempt]})
        session = _Session(tmp_path / "replica", notes, request, feed.model_copy, threading.Event())
        session.progress, session._rows_at_start = session._beginning(feed), seen
        session._run = SimpleNamespace(log=sent.append)
        session._catch_up(feed)
        if not seen:
            del sent[2:]  # It was killed before W&B had the third.
    assert [(row["step"], "lm/acc" in row) for row in sent] == [
        (1, False),
        (2, False),
        (2, True),
        (3, False),
        (4, False),
    ]


def test_killed_mirror_continues_without_gap_or_duplicate(api):
    run_id = submitted(api)
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started() + steps(1, 50))
    with mirroring(api) as controller:
        until(
            lambda: (p := Notes(api.settings.home, run_id).progress()) and p.rows == 50,
            within_s=60,
            what="fifty rows",
        )
        killed = controller.pid
        os.kill(killed, signal.SIGKILL)
        ingest(api.store, attempt, steps(51, 90))
        # Neither the run nor the API notices.
        assert api.client.get(f"/api/v1/runs/{run_id}").json()["state"] == "running"
        until(lambda: controller.pid not in {None, killed}, within_s=60, what="another process")
        ingest(api.store, attempt, finished(90))
        end(api.store, run_id)
        until_mirrored(api, run_id)
    [mirrored] = files(api, run_id)
    assert len(mirrored.rows) == 90
    assert_equal_series(api, run_id, mirrored.series)


def test_ended_runs_are_mirrored_on_request_and_grouped_by_sweep(mirrored_api):
    api = mirrored_api
    answer = api.client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC})
    run_id = answer.json()["trials"][1]["run"]["id"]
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started() + steps(1, 4))
    ingest(api.store, attempt, line("warning", code="x", message="long ago"))
    ingest(api.store, attempt, finished(4, "failed", cause="nan_loss", message="NaN at 4"))
    end(api.store, run_id, RunState.FAILED, "NaN at 4")
    assert api.client.get(f"/api/v1/runs/{run_id}").json()["wandb"] is None
    request = {"mode": "offline", "project": "elsewhere"}
    answer = api.client.post(f"/api/v1/runs/{run_id}/wandb", json=request)
    assert answer.json()["wandb"]["text"] == "offline, not started"
    until_mirrored(api, run_id)
    again = {"mode": "offline", "project": "again"}
    api.client.post(f"/api/v1/runs/{run_id}/wandb", json=again)
    until_mirrored(api, run_id)
    [mirrored] = files(api, run_id)
    assert (mirrored.run.project, mirrored.run.run_group) == ("again", "grid")
    assert mirrored.alerts == []
    assert mirrored.exit_code == 1
    assert mirrored.summary["lehr/reason"] == "NaN at 4"
    assert_equal_series(api, run_id, mirrored.series)


def test_missing_package_or_key_is_reported_before_anything_is_recorded(api, monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    online = {**RUN_SPEC, "tracking": {"wandb": {}}}
    answer = api.client.post("/api/v1/runs", json={"spec": online}).json()
    assert answer["problems"][0]["path"] == "tracking.wandb.mode"
    assert "the server has no W&B API key for api.wandb.ai" in answer["detail"]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert api.client.post("/api/v1/runs", json={"spec": online}).status_code == 201
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "wandb" else find(name)
    )
    sweep = {**SWEEP_SPEC, "run": {**SWEEP_SPEC["run"], **OFFLINE}}
    for path, spec in (("runs", {**RUN_SPEC, **OFFLINE}), ("sweeps", sweep)):
        answer = api.client.post(f"/api/v1/{path}", json={"spec": spec})
        assert answer.status_code == 422
        assert "the package wandb is not installed" in answer.text
        assert extras.install("lehr[wandb]") in answer.text
    assert len(api.store.runs.page().items) == 1


def test_failing_mirror_shows_the_reason_and_the_run_continues(api, monkeypatch):
    # A W&B server that is not there: the port is closed.
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    run_id = submitted(api, tracking={"wandb": {"mode": "online"}})
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started() + steps(1, 3))
    with mirroring(api):
        status = until(
            lambda: (
                (w := api.client.get(f"/api/v1/runs/{run_id}").json()["wandb"]) and w["error"] and w
            ),
            within_s=120,
            what="an error",
        )
        # Records of the training are accepted while the mirror fails.
        assert api.store.runs.get(run_id).state == "running"
        ingest(api.store, attempt, steps(4, 6) + finished(6))
        exit_ = {"exit": {"code": 0}, "sizes": api.store.streams.sizes(attempt), "node_rank": 0}
        assert api.dispatcher.on_exit(attempt, exit_)["closed"]
        shown = api.client.get(f"/api/v1/runs/{run_id}/series", params={"name": "train/loss"})
        assert shown.json()[0]["step"] == [1, 2, 3, 4, 5, 6]
    assert status["state"] == "failed"
    assert status["error"] in status["text"]
    assert "0" * 40 not in api.client.get(f"/api/v1/runs/{run_id}").text
    assert api.store.runs.get(run_id).state == "completed"


def test_deleting_a_run_deletes_its_offline_files(mirrored_api):
    api = mirrored_api
    run_id = submitted(api)
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, started() + steps(1, 2) + finished(2))
    end(api.store, run_id)
    until_mirrored(api, run_id)
    assert api.client.delete(f"/api/v1/runs/{run_id}").status_code == 200
    folder = Notes(api.settings.home, run_id).folder
    until(lambda: not folder.exists(), within_s=30, what="the files to go")


def test_the_key_does_not_reach_a_trainer(monkeypatch):
    from lehr.node.agent import clean_environment

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("HF_HOME", "/data")
    environment = clean_environment()
    assert environment["HF_HOME"] == "/data"
    assert "WANDB_API_KEY" not in environment


def test_mirror_of_a_deleted_run_is_not_requested_again(tmp_path: Path) -> None:
    wandb = WandbTracking(mode="offline")
    with fresh_store(tmp_path / "home") as store:
        controller = MirrorController(store, Presenter(store), store.home)
        run = store.runs.create(run_spec(tracking={"wandb": wandb.model_dump()}))
        stores.begin(store, run.id)
        controller._judge(run.id)
        notes = Notes(store.home, run.id)
        assert isinstance(notes.request(), MirrorRequest)
        assert controller._mirrors == {run.id: False}
        end(store, run.id, RunState.FAILED)
        store.runs.mark_deleted(run.id)
        for _ in range(2):
            controller._judge(run.id)
            assert controller._mirrors == {}
            assert not notes.folder.exists()
