"""The routes of webhooks: addresses go in and never come out."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr_testing.api import api_client

URL = "https://hooks.example.com/services/T0/secret"


@pytest.fixture
def client(tmp_path: Path):
    with api_client(tmp_path / "home") as (_, client):
        yield client


def test_webhook_is_added_listed_and_removed_without_showing_its_address(client) -> None:
    path = "/api/v1/webhooks/team"
    added = client.put(path, json={"url": URL})
    assert added.json() == {"name": "team", "host": "hooks.example.com"}
    listed = client.get("/api/v1/webhooks")
    assert listed.json() == {"webhooks": [added.json()]}
    assert "secret" not in added.text + listed.text
    assert client.delete(path).json() == added.json()
    assert client.delete(path).status_code == 404
    assert client.get("/api/v1/webhooks").json() == {"webhooks": []}


def test_address_that_is_none_is_refused_without_repeating_it(client) -> None:
    answer = client.put("/api/v1/webhooks/team", json={"url": "ftp://secret"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"
    assert "secret" not in answer.text


def test_test_message_to_an_internal_address_is_refused_with_the_remedy(client) -> None:
    client.put("/api/v1/webhooks/local", json={"url": "http://127.0.0.1:9/x"})
    answer = client.post("/api/v1/webhooks/local/test")
    assert answer.status_code == 502
    assert answer.json()["code"] == "undelivered"
    assert "LEHR_WEBHOOK_HOSTS" in answer.json()["hint"]
    assert client.post("/api/v1/webhooks/none/test").status_code == 404
