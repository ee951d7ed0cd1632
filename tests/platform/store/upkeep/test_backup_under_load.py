"""`lehr db backup` beside a busy server: it is consistent and has all acknowledged data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lehr.base.signed_tokens import AttemptTokens
from lehr.faces.client import Client
from lehr.node.http_client import PROTOCOL
from lehr.specs import load_spec
from lehr.store import Store
from lehr_testing.api import RUN_SPEC, metrics, started
from lehr_testing.server import free_port
from lehr_testing.waiting import until

# Of every change is the backup beside one writer, in tests/platform/faces/cli/test_db.py.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
CLIENTS = 4
NOWHERE = "127.0.0.1:1"  # No Ray: what trains here are the test's own clients.
LEHR = str(Path(sys.executable).parent / "lehr")


class Ingesting(threading.Thread):
    """Sends one attempt's metrics, 20 steps a call, as its shipper would; notes what was confirmed."""

    def __init__(self, url: str, home: Path, attempt_id: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.url = f"{url}/api/v1/attempts/{attempt_id}/streams/events.jsonl"
        self.token = AttemptTokens(home).token(attempt_id)
        self.over = over
        self.confirmed = self.sent = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/octet-stream",
            "Lehr-Protocol": str(PROTOCOL),
        }
        try:
            with httpx.Client(headers=headers) as client:
                offset = self.put(client, 0, started())
                while not self.over.is_set():
                    first, self.sent = self.confirmed + 1, self.confirmed + 20
                    offset = self.put(client, offset, metrics(first, self.sent))
                    self.confirmed = self.sent
        except Exception as error:
            self.failure = error

    def put(self, client: httpx.Client, offset: int, data: bytes) -> int:
        answer = client.put(self.url, params={"offset": offset}, content=data, timeout=60)
        answer.raise_for_status()
        return offset + len(data)


@pytest.fixture
def home(tmp_path) -> Path:
    """With runs whose attempts have begun."""
    home = tmp_path / "home"
    with Store.open(home) as store:
        tokens = AttemptTokens(home)
        for number in range(CLIENTS):
            run = store.runs.create(load_spec(RUN_SPEC | {"name": f"busy-{number}"}))
            attempt = f"{run.id}-1"
            store.transitions.begin_attempt(
                run.id,
                placement=[{"node": "n1", "gpus": [number]}],
                resume_from=None,
                token_sha256=tokens.sha256(attempt),
            )
            store.attempts.update(attempt, dispatched_at=store.clock())
    return home


@pytest.fixture
def server(home) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "lehr_api", "--home", str(home)),
            *("--port", str(port), "--ray-address", NOWHERE),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/api/v1/health").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(answers, within_s=60, what="the server to answer")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def lehr(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LEHR, "db", *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LEHR_HOME": str(home)},
    )


def test_backups_under_load_restore_all_acknowledged_data(server, home, tmp_path):
    client = Client(server, token=(home / "token").read_text().strip())
    attempts = [f"{run.id}-1" for run in client.runs()]
    over = threading.Event()
    threads = [Ingesting(server, home, attempt, over) for attempt in attempts]
    for thread in threads:
        thread.start()
    backups = []
    try:
        for number in range(3):
            now = [thread.confirmed for thread in threads]
            until(
                lambda now=now: all(
                    t.confirmed > n + 100 or t.failure for t, n in zip(threads, now, strict=True)
                ),
                within_s=60,
                what="every client to send",
            )
            queued = client.submit(RUN_SPEC | {"name": f"beside-{number}"})
            before = {a: t.confirmed for a, t in zip(attempts, threads, strict=True)}
            done = lehr(home, "backup", str(tmp_path / f"kept-{number}"), "--json")
            after = {a: t.sent for a, t in zip(attempts, threads, strict=True)}
            assert done.returncode == 0, done.stderr
            backups.append((json.loads(done.stdout)["backup"], queued.id, before, after))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [thread.failure for thread in threads] == [None] * CLIENTS
    for number, (made, queued, before, after) in enumerate(backups):
        other = tmp_path / f"restored-{number}"
        restored = lehr(other, "restore", made["folder"])
        assert restored.returncode == 0, restored.stderr
        checked = lehr(other, "check", "--json")
        assert checked.returncode == 0, checked.stdout
        with Store.open(other) as store:
            assert store.runs.get(queued).state == "queued"
            assert made["runs"] == CLIENTS + number + 1
            for attempt in attempts:
                steps = store.series.read(attempt[:-2], "train/loss", exact=True).step
                assert steps == list(range(1, len(steps) + 1))
                assert before[attempt] <= len(steps) <= after[attempt]
