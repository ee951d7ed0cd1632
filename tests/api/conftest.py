"""Fixtures of the tests of the API."""

import pytest

from lehr_testing.api import RUN_SPEC, Worker, api_client, begin


@pytest.fixture
def api(tmp_path):
    """The API of an empty home, and a client with its token."""
    with api_client(tmp_path) as pair:
        yield pair


@pytest.fixture
def store(api):
    return api[0].store


@pytest.fixture
def client(api):
    return api[1]


@pytest.fixture
def worker(api):
    """The worker of the first attempt of a new run."""
    api_, client = api
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    begin(api_.store, run)
    return Worker(client, run)
