"""Answers are compressed for clients that accept it; streams of events and weights are not."""

import gzip

import httpx
import pytest

from lehr_testing.api import SWEEP_SPEC, TOKEN, served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        served(tmp_path_factory.mktemp("home")) as (_, address),
        httpx.Client(base_url=address, headers=headers) as client,
    ):
        sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
        yield client, f"/api/v1/sweeps/{sweep['id']}"


def raw(client, path, accepted="gzip"):
    """Return the answer and its bytes as they came over the wire."""
    with client.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
        return answer, b"".join(answer.iter_raw())


def test_large_answers_are_compressed_if_the_client_accepts_it(server):
    client, path = server
    answer, body = raw(client, path)
    assert answer.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in answer.headers["vary"]
    plain, whole = raw(client, path, "identity")
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(body) == whole
    assert len(body) < len(whole) / 3
    # A higher level takes twice the time for 4 %; the first ten bytes have the time.
    assert body[10:] == gzip.compress(whole, compresslevel=6)[10:]


def test_small_answers_and_the_stream_of_events_stay_as_they_are(server):
    client, _ = server
    assert "content-encoding" not in raw(client, "/api/v1/health")[0].headers
    accepts = {"Accept-Encoding": "gzip"}
    with client.stream("GET", "/api/v1/stream", headers=accepts, timeout=20) as answer:
        assert "content-encoding" not in answer.headers
        assert b"event: hello" in next(answer.iter_raw())
