"""Quotas, devices and the metrics for Prometheus."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lehr_testing.api import RUN_SPEC, api_client, begin, ingest, started
from lehr_testing.push import DEVICE


def test_quota_is_set_replaced_listed_and_removed(client):
    assert client.get("/api/v1/quotas").json() == {"quotas": []}
    made = client.put("/api/v1/quotas/ablations", json={"gpus": 8})
    assert made.status_code == 200
    assert (made.json()["project"], made.json()["gpus"]) == ("ablations", 8)
    assert made.json()["changed_by"] == "user"
    client.put("/api/v1/quotas/ablations", json={"gpus": 0})
    client.put("/api/v1/quotas/aa", json={"gpus": 1})
    found = client.get("/api/v1/quotas").json()["quotas"]
    assert [(one["project"], one["gpus"]) for one in found] == [("aa", 1), ("ablations", 0)]
    assert client.delete("/api/v1/quotas/ablations").json()["gpus"] == 0
    missing = client.delete("/api/v1/quotas/aaa")
    assert missing.status_code == 404
    assert missing.json()["hint"] == "Did you mean aa?"


@pytest.mark.parametrize(
    ("project", "body"),
    [
        ("a b", {"gpus": 1}),
        ("-x", {"gpus": 1}),
        ("x" * 101, {"gpus": 1}),
        ("x", {"gpus": -1}),
        ("x", {"gpus": "4"}),
        ("x", {"gpus": 1.5}),
        ("x", {"gpus": True}),
        ("x", {}),
        ("x", {"gpus": 1, "more": 1}),
    ],
)
def test_bad_quota_is_refused(client, project, body):
    assert client.put(f"/api/v1/quotas/{project}", json=body).status_code == 422
    assert client.get("/api/v1/quotas").json() == {"quotas": []}


def test_prometheus_metrics_describe_the_control_plane(tmp_path):
    with api_client(tmp_path) as (api, client):
        ids = [client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"] for _ in range(3)]
        ingest(api.store, begin(api.store, ids[0]), started())
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        assert found["lehr_runs", "queued"] == 2
        assert found["lehr_runs", "running"] == 1
        assert found["lehr_runs", "failed"] == 0
        assert (found[("lehr_gpus",)], found[("lehr_gpus_busy",)]) == (8, 0)
        assert found[("lehr_attempts_open",)] == 1
        assert found["lehr_file_bytes", "lehr.db"] > 0
        assert found[("lehr_since_tick_seconds",)] == 2.5
        assert found["lehr_disk_free_bytes", "home"] > 0
        assert found[("process_resident_memory_bytes",)] > 0
        assert not re.search(ids[0], answer.text)
        bare = client.get("/metrics", headers={"Authorization": "Bearer wrong"})
        assert bare.status_code == 401
        assert "lehr_runs" not in bare.text


def test_browser_subscribes_for_its_person_and_gets_a_first_message(tmp_path):
    with api_client(tmp_path / "home") as (api, client):
        key = client.get("/api/v1/push").json()
        keys = {"p256dh": DEVICE.p256dh, "auth": DEVICE.auth}
        body = {"endpoint": DEVICE.endpoint, "expirationTime": None, "keys": keys}
        assert client.put("/api/v1/push", json=body).json() == key
        [(name, device)] = api.services.sender.devices.all()
        assert device.person == "user"
        waiting = api.store.outbox.next(without=[])
        assert waiting is None or waiting.webhook == name  # Its sender may have tried it.
        assert client.put("/api/v1/push", json={**body, "keys": {}}).status_code == 422
