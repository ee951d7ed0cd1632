"""Alerts act on runs: what the spec says, once, with a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.app.alerting.push import Devices
from lehr.app.alerting.watch import AlertWatch
from lehr.base import killpoints
from lehr.control.lifecycle import RunState
from lehr_testing.api import (
    RUN_SPEC,
    api_client,
    begin,
    end,
    finished,
    ingest,
    line,
    metrics,
    started,
)
from lehr_testing.push import DEVICE
from lehr_testing.waiting import until

URL = "https://hooks.example.com/x"
PLAUSIBLE = {"train/loss": 5.0}
"""No alert: a loss that falls to a tenth of a nat would be too low for text."""


class Outbox:
    devices = Devices(Path("/nonexistent"), url="http://127.0.0.1")

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []

    def put(self, webhook: str, body: dict[str, Any]) -> None:
        self.got.append((webhook, body))

    def wake(self) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path):
    with api_client(tmp_path / "home") as (api, client):
        client.put("/api/v1/secrets/team", json={"value": URL})
        yield api, client


def watch_of(api_, outbox: Outbox) -> AlertWatch:
    services = api_.services
    return AlertWatch(
        services.store,
        services.presenter.runs,
        outbox,
        wake=api_.dispatcher.wake,
        server_url="https://lehr.test",
    )


def training(api_, client, **alerts: Any) -> str:
    """Submit a run and let its loss become nan; return its id."""
    spec = {**RUN_SPEC, "alerts": alerts}
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    run_id = answer.json()["id"]
    attempt = begin(api_.store, run_id)
    lines = started() + metrics(1, 30, **PLAUSIBLE) + metrics(31, 33, **{"train/loss": "NaN"})
    ingest(api_.store, attempt, lines)
    assert api_.store.runs.get(run_id).state == RunState.RUNNING
    return run_id


def happened(client, run_id: str, code: str = "") -> list[tuple[str, str]]:
    events = client.get(f"/api/v1/runs/{run_id}/events").json()
    alerts = [one for one in events if one["kind"] == "alert"]
    return [
        (one["data"]["action"], one["message"])
        for one in alerts
        if one["data"]["code"].startswith(code)
    ]


@pytest.mark.parametrize(
    ("action", "desired"),
    [("note", "run"), ("warn", "run"), ("pause", "pause"), ("stop", "cancel")],
)
def test_alert_does_what_the_spec_says_and_is_recorded(api, action: str, desired: str) -> None:
    api_, client = api
    run_id = training(api_, client, actions={"nan": action}, webhook="team")
    outbox = Outbox()
    woken = api_.dispatcher.woken
    watch_of(api_, outbox).act(run_id)
    assert api_.store.runs.get(run_id).desired == desired
    assert (api_.dispatcher.woken > woken) == (desired != "run")
    [(done, message)] = happened(client, run_id)
    assert (done, message) == (desired if desired != "run" else action, message)
    assert "nan at step 31: the loss became nan" in message
    sent = [(name, body["event"], body["alert"]["action"]) for name, body in outbox.got]
    assert sent == ([] if action == "note" else [("team", "alert", action)])


def test_alert_acts_once_also_after_a_resume_and_a_restart_of_the_server(api) -> None:
    api_, client = api
    run_id = training(api_, client, actions={"nan": "pause"}, webhook="team")
    outbox = Outbox()
    watch = watch_of(api_, outbox)
    watch.act(run_id)
    watch.act(run_id)
    client.post(f"/api/v1/runs/{run_id}/resume")
    watch.act(run_id)
    watch_of(api_, outbox).act(run_id)
    assert api_.store.runs.get(run_id).desired == "run"
    assert len(happened(client, run_id)) == len(outbox.got) == 1


def test_ended_run_is_not_stopped_and_its_end_is_sent_once(api) -> None:
    api_, client = api
    run_id = training(api_, client, actions={"nan": "stop"}, webhook="team")
    ingest(api_.store, f"{run_id}-1", finished(33, "failed"))
    end(api_.store, run_id, RunState.FAILED, "the loss became nan")
    outbox = Outbox()
    for _ in range(2):
        watch_of(api_, outbox).act(run_id)
    assert [body["event"] for _, body in outbox.got] == ["alert", "end"]
    assert "is failed: the loss became nan" in outbox.got[1][1]["text"]
    assert [done for done, _ in happened(client, run_id)] == ["warn"]


def test_devices_get_the_ends_of_their_persons_runs_from_then_on(api, tmp_path: Path) -> None:
    api_, client = api
    outbox = Outbox()
    outbox.devices = Devices(tmp_path, url="")
    now = api_.store.clock()
    own, *_ = [
        outbox.devices.put(
            DEVICE._replace(endpoint=f"{DEVICE.endpoint}{i}", person=who, since=then)
        )
        for i, (who, then) in enumerate([("user", now), ("user", now + 1e6), ("ben", now)])
    ]
    run_id = training(api_, client)
    end(api_.store, run_id, RunState.FAILED, "the loss became nan")
    for _ in range(2):
        watch_of(api_, outbox).act(run_id)
    assert [(name, body["event"]) for name, body in outbox.got] == [(own, "alert"), (own, "end")]


def spiking(api_, client, *checkpoints: int, **alerts: Any) -> str:
    """Submit a run whose loss spikes at steps 31, 41 and 51; return its id."""
    spec = {**RUN_SPEC, "alerts": {"actions": {"spikes": "rewind"}, **alerts}}
    run_id = client.post("/api/v1/runs", json={"spec": spec}).json()["id"]
    ingest(api_.store, begin(api_.store, run_id), started())
    train(api_, run_id, 1, 1, 55, checkpoints, spikes=(31, 41, 51))
    return run_id


def train(api_, run_id, attempt, first, last, checkpoints=(), spikes=()) -> None:
    for step in range(first, last + 1):
        loss = 8.0 if step in spikes else 5.0
        ingest(api_.store, f"{run_id}-{attempt}", metrics(step, step, **{"train/loss": loss}))
        if step in checkpoints:
            path = f"attempt-{attempt}/checkpoints/step-{step:08d}"
            saved = {"size_bytes": 1, "digest": "ab", "reason": "interval"}
            ingest(
                api_.store, f"{run_id}-{attempt}", line("checkpoint", step=step, path=path, **saved)
            )


def test_each_new_spike_rewinds_the_run_up_to_a_limit(api, monkeypatch) -> None:
    api_, client = api
    store = api_.store
    run_id = spiking(api_, client, 20, 45, 54, rewinds=1, webhook="team")
    outbox = Outbox()
    watch = watch_of(api_, outbox)

    def die(point: str) -> None:
        if point == "transaction: before commit":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(killpoints, "reached", die)
        with pytest.raises(KeyboardInterrupt):
            watch.act(run_id)
    assert store.runs.get(run_id).rewound is None
    outbox.got.clear()
    for _ in range(2):
        watch.act(run_id)
    run = store.runs.get(run_id)
    assert (run.state, run.cause, run.desired) == ("stopping", "rewind", "run")
    assert run.rewound == {"attempt": 1, "before": 51, "through": 55}
    [(action, message)] = happened(client, run_id, "spikes")
    assert action == "rewind"
    what = "rewinds from step 55 to 45, and skips the data of steps 46 to 55"
    assert what in message
    assert run.reason.endswith(what)
    assert [body["id"] for _, body in outbox.got].count(f"{run_id}:alert:spikes:1") == 1

    # Its next attempt is diagnosed by its own curve, not by what was given up.
    end(store, run_id, RunState.QUEUED)
    path = "attempt-1/checkpoints/step-00000045"
    resumed = line("resumed", step=45, checkpoint=path, skipped_through=55)
    ingest(store, begin(store, run_id, 2), started(2))
    watch.act(run_id)
    ingest(store, f"{run_id}-2", resumed)
    train(api_, run_id, 2, 46, 70)
    watch.act(run_id)
    assert store.runs.get(run_id).state == "running"
    assert len(happened(client, run_id, "spikes")) == 1
    words = "rewound from step 55 to 45, skipped the data of steps 46 to 55"
    assert words in client.get(f"/api/v1/runs/{run_id}/events").text
    train(api_, run_id, 2, 71, 80, spikes=(71,))
    for _ in range(2):
        watch.act(run_id)
    assert store.runs.get(run_id).desired == "cancel"
    [_, (action, message)] = happened(client, run_id, "spikes")
    assert (action, message.endswith("alerts.rewinds is 1, and all are used (cancel)")) == (
        "cancel",
        True,
    )


@pytest.mark.parametrize(
    ("checkpoint", "last", "why"),
    [
        (52, 55, "no checkpoint from before that is left"),
        (45, 152, "it was long ago, and the loss has recovered"),
    ],
)
def test_spike_that_cannot_be_rewound_is_warned_of_once(api, checkpoint, last, why) -> None:
    api_, client = api
    run_id = spiking(api_, client, checkpoint)
    train(api_, run_id, 1, 56, last)
    for _ in range(2):
        watch_of(api_, Outbox()).act(run_id)
    assert api_.store.runs.get(run_id).state == "running"
    [(action, message)] = happened(client, run_id, "spikes")
    assert action == "warn"
    assert f"not rewound: {why}" in message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**RUN_SPEC, "alerts": {"actions": {"nan": "rewind"}}}, "rewind is no action of nan"),
        ({**RUN_SPEC, "alerts": {"other": "rewind"}}, "rewind is no action of other"),
        (
            {
                "name": "a",
                "trainer": {"module": "mine"},
                "alerts": {"actions": {"spikes": "rewind"}},
            },
            "rewind is for Lehr's own trainer",
        ),
    ],
)
def test_rewind_that_cannot_help_is_refused(api, spec, message) -> None:
    answer = api[1].post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    assert message in answer.text


def test_healthy_run_is_left_alone(api) -> None:
    api_, client = api
    run_id = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    outbox = Outbox()
    watch = watch_of(api_, outbox)
    watch.act(run_id)  # Queued: without curves.
    ingest(api_.store, begin(api_.store, run_id), started() + metrics(1, 30, **PLAUSIBLE))
    watch.act(run_id)
    assert happened(client, run_id) == outbox.got == []


def test_thread_acts_on_runs_as_their_metrics_arrive(api, monkeypatch) -> None:
    api_, client = api
    monkeypatch.setattr("lehr.app.alerting.watch.GATHER_S", 0.01)
    watch = watch_of(api_, Outbox())
    watch.start()
    try:
        run_id = training(api_, client, actions={"nan": "stop"})
        until(
            lambda: api_.store.runs.get(run_id).desired == "cancel",
            within_s=30,
            what="the alert's action",
        )
    finally:
        watch.stop()


def test_spec_with_an_unknown_webhook_is_refused_with_the_nearest_name(api) -> None:
    _, client = api
    spec = {**RUN_SPEC, "alerts": {"webhook": "taem"}}
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "alerts.webhook"
    assert "Did you mean team?" in problem["hint"]
    assert client.get("/api/v1/runs").json()["total"] == 0


def test_misspelt_alert_is_refused_with_the_nearest_name(api) -> None:
    _, client = api
    spec = {**RUN_SPEC, "alerts": {"actions": {"divergin": "stop"}}}
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    assert "diverging" in answer.text
