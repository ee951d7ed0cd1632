"""Quotas over REST: set, listed, removed; who may."""

from __future__ import annotations

import pytest

from lehr_testing.api import api_client


@pytest.fixture
def client(tmp_path):
    with api_client(tmp_path) as (_, client):
        yield client


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
