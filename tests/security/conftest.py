"""Fixtures of the tests of people and workers who are not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr_testing.api import api_client

from .projects import API, SECRET, Scene, project


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with api_client(tmp_path / "home") as (api, client):
        mine = project(api, client, "mine", "own", tmp_path)
        theirs = project(api, client, "theirs", SECRET, tmp_path)
        query = {"query": f"filter={SECRET}"}
        assert client.put(f"{API}/views/{SECRET}", json=query).status_code == 200
        assert client.put(f"{API}/quotas/theirs", json={"gpus": 1}).status_code == 200
        assert client.put(f"{API}/quotas/mine", json={"gpus": 4}).status_code == 200
        for secret in (f"{SECRET}-shared", "theirs.canary", "mine.hf"):
            assert client.put(f"{API}/secrets/{secret}", json={"value": "v"}).status_code == 200
        body = {"name": "eve", "role": "researcher", "projects": ["mine"]}
        made = client.post(f"{API}/tokens", json=body)
        assert made.status_code == 201, made.text
        assert made.json()["projects"] == ["mine"]
        yield Scene(api, client, made.json()["token"], mine, theirs)
