"""Server-sent events over a real socket: changes arrive, slow readers block no other."""

import threading
import time
from contextlib import suppress

import httpx
import pytest

from lehr import Client
from lehr.errors import ServerUnavailable
from lehr_api import auth
from lehr_api.logins import OWNER, Login
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    begin,
    evaluation,
    ingest,
    metrics,
    served,
    started,
)
from lehr_testing.waiting import until


class Closed(Exception):
    """The test is over."""


class EventReader:
    """Collect the events of a client in a thread."""

    def __init__(self, address, run=None):
        self.received = []
        self.closed = threading.Event()
        self.client = Client(address, TOKEN)
        self._http = self.client.transport._http
        self._connect, self._http.stream = self._http.stream, self._stream
        self.thread = threading.Thread(target=self._listen, args=(run,), daemon=True)
        self.thread.start()
        until(lambda: self.of("hello"), within_s=30, what="the greeting")

    def close(self):
        """End the thread. Call it when the server has ended: otherwise it waits for an event."""
        self.closed.set()
        self.thread.join(timeout=30)
        assert not self.thread.is_alive(), "the reader of events did not end"

    def _listen(self, run):
        with suppress(Closed, ServerUnavailable):
            for event in self.client.stream(run):
                self.received.append(event)

    def _stream(self, *arguments, **options):
        if self.closed.is_set():
            raise Closed
        return self._connect(*arguments, **options)

    def of(self, kind):
        return [event.data for event in self.received if event.kind == kind]

    def wait_for(self, kind, matching=lambda data: True):
        return until(
            lambda: next((data for data in self.of(kind) if matching(data)), None),
            within_s=30,
            what=f"an event {kind}",
        )


@pytest.fixture
def read_events():
    """Start readers of events. They end after the servers of the test."""
    readers = []

    def read(*arguments, **options):
        readers.append(EventReader(*arguments, **options))
        return readers[-1]

    yield read
    for reader in readers:
        reader.close()


@pytest.fixture
def server(tmp_path, read_events):
    with served(tmp_path) as pair:
        yield pair


def test_the_stream_reports_changes_as_they_happen(server, read_events):
    api, address = server
    events = read_events(address)
    client = Client(address, TOKEN)
    sweep = client.sweep(SWEEP_SPEC)
    run = sweep.trials[0].run.id
    events.wait_for("run", lambda data: data["id"] == run and data["state"] == "queued")
    events.wait_for("sweep", lambda data: data["id"] == sweep.id)
    attempt = begin(api.store, run)
    events.wait_for("run", lambda data: data["id"] == run and data["state"] == "starting")
    ingest(api.store, attempt, started() + metrics(1, 5))
    event_data = events.wait_for(
        "run", lambda data: data["id"] == run and data["state"] == "running"
    )
    assert event_data["latest"]["train/loss"] == {"value": 2.0, "step": 5}
    api.store.streams.append(
        attempt,
        "events.jsonl",
        api.store.streams.sizes(attempt)["events.jsonl"],
        evaluation(6, "NaN"),
    )
    event_data = events.wait_for("metrics", lambda data: "val/loss" in data["latest"])
    assert event_data == {**event_data, "run_id": run}
    assert event_data["latest"]["val/loss"] == {"value": "NaN", "step": 6}
    ingest(api.store, attempt, b"hello\n", "rank-0.log")
    event_data = events.wait_for("log")
    assert event_data == {"run_id": run, "name": "rank-0.log", "attempt": 1, "size": 6}


def test_browser_subscribes_with_its_cookie_and_last_event_id(server):
    _, address = server
    headers = {
        "Cookie": f"{auth.Keys(TOKEN).cookie_name}="
        + auth.Keys(TOKEN).cookie_of(OWNER, Login.new(time.time())),
        "Last-Event-ID": "999",
    }
    with httpx.stream(
        "GET", f"{address}/api/v1/stream", headers=headers, trust_env=False, timeout=30
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        assert next(lines) == "event: hello"


def test_client_reconnects_to_a_restarted_server(tmp_path, read_events):
    with served(tmp_path) as (first, address):
        port = first.settings.port
        events = read_events(address)
    from lehr_testing import api as support_api

    original = support_api.free_port
    support_api.free_port = lambda: port
    try:
        with served(tmp_path) as (_, address):
            until(lambda: len(events.of("hello")) >= 2, within_s=60, what="a second greeting")
            run = Client(address, TOKEN).submit(RUN_SPEC)
            events.wait_for("run", lambda data: data["id"] == run.id)
    finally:
        support_api.free_port = original


def test_hundred_subscribers_cause_one_read_of_the_store(server):
    api, address = server
    client = Client(address, TOKEN)
    run = client.submit(RUN_SPEC)
    looks = []
    real = api.store.runs.by_ids
    api.store.runs.by_ids = lambda ids: (looks.append(ids), real(ids))[1]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(headers=headers, limits=limits, trust_env=False, timeout=60) as http:
        streams = [
            http.send(http.build_request("GET", f"{address}/api/v1/stream"), stream=True)
            for _ in range(100)
        ]
        readers = [stream.iter_lines() for stream in streams]
        for reader in readers:
            while next(reader) != "event: hello":
                pass
        until(lambda: len(api.services.hub._listeners) == 100, within_s=30, what="100 listeners")
        run.cancel()
        for reader in readers:
            # The event of the submission may come first.
            while '"desired":"cancel"' not in next(reader):
                pass
        assert 1 <= len(looks) <= 3
        for stream in streams:
            stream.close()
