"""Runs and sweeps over HTTP: lists, views, actions."""

from __future__ import annotations

import json

import pytest

from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr.control.liveness import Liveness
from lehr.store.upkeep.integrity import check
from lehr_testing import stores
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    begin,
    changed,
    end,
    evaluation,
    finished,
    ingest,
    line,
    metrics,
    started,
    submit,
)
from lehr_testing.stores import next_attempt

# -------------------------------------------------------------------------------------- listing


def test_pages_are_newest_first_without_gaps_or_duplicates(client):
    names = [f"run-{n}" for n in range(7)]
    for name in names:
        submit(client, name=name)
    seen, cursor = [], None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = client.get("/api/v1/runs", params=params).json()
        assert page["total"] == 7
        seen += [run["name"] for run in page["items"]]
        submit(client, name="meanwhile") if len(seen) == 100 else None
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == names[::-1]


def test_runs_are_filtered(store, client):
    submit(client, name="a", project="p", tags=["x"])
    submit(client, name="b", tags=["y"])
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()

    def names(**params):
        answer = client.get("/api/v1/runs", params=params)
        assert answer.status_code == 200, answer.text
        return sorted(run["name"] for run in answer.json()["items"])

    assert names(project="p") == ["a"]
    assert names(tag="y") == ["b"]
    assert names(name="b") == ["b"]
    assert names(search="grid") == ["grid-1", "grid-2", "grid-3"]
    assert names(sweep="grid") == names(sweep=sweep["id"]) == ["grid-1", "grid-2", "grid-3"]
    begin(store, client.get("/api/v1/runs/a").json()["id"])
    assert names(state="starting") == ["a"]
    assert names(state=["starting", "queued"], project="p") == ["a"]


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "x"},
        {"state": "runing"},
        {"cursor": "x"},
        {"cursor": "-1"},
        {"cursor": "9" * 30},
        {"archived": "perhaps"},
    ],
)
def test_a_wrong_filter_is_a_problem_that_names_it(client, params):
    submit(client)
    answer = client.get("/api/v1/runs", params=params)
    assert answer.status_code == 422
    assert next(iter(params)) in answer.json()["detail"]


def test_list_of_a_thousand_runs_needs_few_queries(store, client):
    spec = changed(SWEEP_SPEC, "parameters", {"train.seed": {"values": list(range(1000))}})
    assert client.post("/api/v1/sweeps", json={"spec": spec}).status_code == 201
    statements = []
    from sqlalchemy import event

    engine = store.db._readers
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    page = client.get("/api/v1/runs", params={"limit": 1000}).json()
    assert len(page["items"]) == 1000
    assert len(statements) <= 12


def test_list_shows_every_change_of_a_run_whose_view_it_keeps(api, monkeypatch):
    api_, client = api
    store, runs = api_.store, api_.services.presenter.runs
    run_id = submit(client)["id"]
    attempt = begin(store, run_id)
    ingest(store, attempt, started() + metrics(1, 9))
    end(store, run_id)

    def listed():
        [kept] = client.get("/api/v1/runs", params={"run": run_id}).json()["items"]
        assert kept == json.loads(views([store.runs.get(run_id)])[0].model_dump_json())
        return kept

    def rows_of_a_moment(run_ids):
        rows = [store.runs.set_note(run_id, "for a moment")]
        store.runs.set_note(run_id, "b")
        return rows

    views = runs.views
    shown = listed()
    monkeypatch.setattr(runs, "views", None)  # It is not made again.
    assert listed() == shown
    monkeypatch.undo()
    for change in (
        lambda: store.runs.set_note(run_id, "a"),
        lambda: store.runs.set_tags(run_id, ["t"]),
        lambda: stores.ingest(store, attempt, metrics(10, 12, **{"train/loss": "Infinity"})),
        lambda: store.attempts.update(attempt, last_step=13),
        lambda: runs.diagnose(store.runs.get(run_id)),
        lambda: store.runs.set_archived(run_id, True),
    ):
        before = listed()
        change()
        assert listed() != before
    store.runs.set_note(run_id, "b")
    monkeypatch.setattr(store.runs, "by_ids", rows_of_a_moment)
    client.get("/api/v1/runs", params={"run": run_id})
    monkeypatch.undo()
    assert listed()["note"] == "b"


# ------------------------------------------------------------------------------------ the view


def test_running_run_shows_its_step_and_remaining_time(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started() + metrics(1, 39, mfu=0.5))
    last = {"train/loss": 0.25, "step_time_s": 0.5, "mfu": 0.5}
    ingest(api_.store, attempt, line("metrics", time=70.5, step=40, values=last))
    ingest(api_.store, attempt, evaluation(40, 2.5))
    view = client.get("/api/v1/runs/one").json()
    assert view["recorded_at"] == 70.5
    assert view["state"] == "running"
    assert view["step"] == 40
    assert view["latest"]["train/loss"] == {"value": 0.25, "step": 40}
    assert view["latest"]["val/loss"] == {"value": 2.5, "step": 40}
    assert len(view["trend"]) == 24
    assert view["trend"][-1] == 0.25
    assert view["eta_s"] == pytest.approx(30.0)
    assert view["placement"] == [{"node": "n1", "gpu": 0}]
    assert view["device"] == "cpu (logical GPU)"
    assert view["parameters"] == 1000
    assert view["alerts"] == []
    # A run without contact has no estimated time.
    for liveness in (Liveness.UNREACHABLE, Liveness.STALLED):
        api_.dispatcher.silent = {run["id"]: liveness}
        view = client.get("/api/v1/runs/one").json()
        assert (view["liveness"], view["eta_s"]) == (liveness.value, None)


def test_run_of_stages_shows_them_and_its_exact_tokens(store, client):
    stages = [{"tokens": 1000}, {"name": "big", "tokens": 2000, "batch": {"sequences": 8}}]
    spec = changed(RUN_SPEC, "train.stages", stages)
    del spec["train"]["steps"]
    answer = client.post("/api/v1/runs", json={"spec": spec})
    ingest(store, begin(store, answer.json()["id"]), started() + metrics(1, 6))
    view = client.get("/api/v1/runs/one").json()
    assert [(one["name"], one["first_step"], one["last_step"]) for one in view["stages"]] == [
        ("1", 1, 4),
        ("big", 5, 8),
    ]
    assert (view["tokens"], view["total_tokens"], view["stage"]) == (2048, 3072, "big")
    assert [one["tokens"] for one in view["stages"]] == [0, 1024]
    assert view["flops_per_token"] is not None
    report = client.get("/api/v1/reports/one").text
    assert ">big</text>" in report
    assert "steps 5 to 8, 8 x 64 tokens a step" in report


@pytest.mark.parametrize(
    ("outcome", "how"),
    [
        ("completed", "has completed"),
        ("stopped", "has stopped and saved"),
        ("failed", "has failed"),
    ],
)
def test_run_whose_training_has_ended_says_so_until_its_node_reports_it(
    store, client, outcome, how
):
    run = submit(client)
    attempt = begin(store, run["id"])
    ingest(store, attempt, started() + metrics(1, 40))
    assert client.get("/api/v1/runs/one").json()["training_over"] is None
    ingest(store, attempt, finished(40, outcome))
    view = client.get("/api/v1/runs/one").json()
    assert view["state"] == "running"
    says = f"its training {how} at step 40; its node has not reported its end yet"
    assert view["training_over"] == says
    end(store, run["id"], RunState.QUEUED)
    assert client.get("/api/v1/runs/one").json()["training_over"] is None


def test_non_finite_values_are_sent_by_name_and_raise_an_alert(store, client):
    run = submit(client)
    attempt = begin(store, run["id"])
    ingest(store, attempt, started() + metrics(1, 3) + evaluation(3, "NaN"))
    ingest(store, attempt, line("warning", code="loss_spike", message="the loss jumped"))
    ingest(store, attempt, line("metrics", step=4, tokens=9, values={"train/loss": "Infinity"}))
    view = client.get("/api/v1/runs/one").json()
    assert view["latest"]["val/loss"]["value"] == "NaN"
    assert view["latest"]["train/loss"]["value"] == "Infinity"
    assert view["trend"][-1] == "Infinity"
    assert "val/loss is nan at step 3" in view["alerts"]
    assert "the loss jumped" in view["alerts"]
    assert any("the loss became inf at step 4" in alert for alert in view["alerts"])
    [series] = client.get("/api/v1/runs/one/series", params={"name": "val/loss"}).json()
    assert series["y"] == ["NaN"]
    evaluations = [
        e for e in client.get("/api/v1/runs/one/events").json() if e["kind"] == "evaluation"
    ]
    assert evaluations[0]["data"]["values"] == {"val/loss": "NaN"}


def test_events_merge_transitions_requests_and_trainer_records(store, client):
    run = submit(client)
    attempt = begin(store, run["id"])
    ingest(store, attempt, line("notice", phase="data", message="prepares", done=0.5))
    assert client.get("/api/v1/runs/one").json()["reason"] == "prepares (50%)"
    ingest(store, attempt, started())
    client.post("/api/v1/runs/one/pause")
    events = client.get("/api/v1/runs/one/events").json()
    assert [event["kind"] for event in events] == [
        "transition",
        "transition",
        "notice",
        "started",
        "transition",
        "request",
    ]
    assert events[0]["data"] == {
        "from": None,
        "to": "queued",
        "cause": "submitted",
        "actor": "user",
    }


PNG = b"\x89PNG\r\n\x1a\n"


def test_media_are_listed_once_their_content_has_arrived_and_served_by_their_bytes(api):
    api_, client = api
    run = submit(client)["id"]
    first = begin(api_.store, run)
    ingest(api_.store, first, started())

    def logged(step, offset, size, name="x"):
        place = {"offset": offset, "size": size, "type": "image", "caption": "c"}
        return line("media", step=step, name=name, **place)

    content = {0: PNG, 8: b"<svg onload='alert(1)'/>", 32: b"GIF89a"}
    ingest(api_.store, first, b"".join(content.values()), "media.bin")
    ingest(
        api_.store, first, logged(1, 0, 8) + logged(2, 8, 24) + logged(3, 32, 6) + logged(4, 32, 7)
    )
    second = next_attempt(api_.store, run).id
    ingest(api_.store, second, b"RIFF....WEBP", "media.bin")
    ingest(api_.store, second, started() + logged(3, 0, 12))
    found = client.get(f"/api/v1/runs/{run}/media").json()
    assert [(one["attempt"], one["step"]) for one in found] == [(1, 1), (1, 2), (2, 3)]
    assert (found[0]["name"], found[0]["caption"], found[0]["type"]) == ("x", "c", "image")
    answers = [
        client.get(
            f"/api/v1/runs/{run}/media/{one['attempt']}?offset={one['offset']}&size={one['size']}"
        )
        for one in found
    ]
    types = [answer.headers["content-type"] for answer in answers]
    assert types == ["image/png", "application/octet-stream", "image/webp"]
    assert [answer.content for answer in answers] == [PNG, content[8], b"RIFF....WEBP"]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox;")
    assert answers[1].headers["content-disposition"] == "attachment"
    for attempt, place in ((1, "offset=32&size=7"), (3, "offset=0&size=1")):
        assert client.get(f"/api/v1/runs/{run}/media/{attempt}?{place}").status_code == 404
    assert client.get(f"/api/v1/runs/{run}/media/1?offset=0&size={1 << 30}").status_code == 422
    assert client.get(f"/api/v1/runs/{run}/logs").json() == []


def test_config_is_yaml_that_reproduces_the_run(api):
    from lehr.specs import read_yaml
    from lehr_trainer.configs.train import TrainConfig

    _, client = api
    run = submit(client)
    answer = client.get("/api/v1/runs/one/config")
    assert answer.headers["content-type"].startswith("application/yaml")
    config = TrainConfig.model_validate(read_yaml(answer.text).data)
    assert config.model_dump(mode="json") == run["spec"]["train"]


# --------------------------------------------------------------------------------------- acting


def test_cancel_is_idempotent_and_wakes_the_dispatcher(api):
    api_, client = api
    submit(client)
    for _ in range(2):
        answer = client.post("/api/v1/runs/one/cancel")
        assert answer.status_code == 200
        assert answer.json()["desired"] == "cancel"
    assert api_.dispatcher.woken == 3
    assert client.post("/api/v1/runs/one/pause").status_code == 409


def test_action_on_an_ended_run_is_a_conflict(store, client):
    run = submit(client)
    attempt = begin(store, run["id"])
    ingest(store, attempt, started())
    end(store, run["id"])
    for verb in ("cancel", "pause", "resume", "retry", "checkpoint"):
        answer = client.post(f"/api/v1/runs/one/{verb}")
        assert answer.status_code == 409, verb
        assert answer.json()["code"] == "conflict"
        assert "completed" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("logged", "resumed_at", "saved_at", "lost"),
    [
        (range(1, 150), 600, None, (150, 600)),
        (range(1, 150), 149, None, None),
        (range(10, 150, 10), 145, None, None),  # Every tenth step is logged.
        (range(10, 150, 10), 160, None, (141, 160)),
        (range(1, 150), 600, 600, None),  # It saved there, and logged nothing on the way.
    ],
)
def test_resume_above_the_last_step_on_record_raises_an_alert(
    api, logged, resumed_at, saved_at, lost
):
    api_, client = api
    store, run = api_.store, submit(client)["id"]
    data = started() + b"".join(metrics(step, step) for step in logged)
    path = f"attempt-1/checkpoints/step-{resumed_at:08d}"
    if saved_at:
        data += line("checkpoint", step=saved_at, path=path, size_bytes=1, digest="0" * 64)
    ingest(store, begin(store, run), data)
    end(store, run, RunState.QUEUED)
    resumed = line("resumed", step=resumed_at, checkpoint=path)
    second = begin(store, run, 2)
    ingest(store, second, started(2) + resumed + finished(resumed_at))
    alerts = client.get(f"/api/v1/runs/{run}/alerts").json()
    expected = [] if lost is None else [("lost_records", lost[0])]
    lost_records = [one for one in alerts if one["code"] == "lost_records"]
    assert [(one["code"], one["step"]) for one in lost_records] == expected
    notes = []
    if lost:
        notes.append((f"{run}-1", f"steps {lost[0]} to {lost[1]} are not on record"))
    if saved_at:
        folder = homes.runs_dir(store.home) / run
        (folder / "attempt-1").mkdir(parents=True)
        notes.append((f"run {run}", f"the checkpoint {path} is not in {folder}"))
    found = check(store.home)
    assert [(note.where, note.message) for note in found if note.level == "note"] == notes
