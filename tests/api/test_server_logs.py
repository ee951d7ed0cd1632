"""The log of a real server: each line about a run or an attempt has them as fields; it rotates."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from structlog.contextvars import bound_contextvars

from lehr.base import own_logs
from lehr.base.signed_tokens import AttemptTokens
from lehr_api import __main__ as server
from lehr_testing.processes import Process
from lehr_testing.stores import fresh_store, line, run_spec
from lehr_testing.waiting import until


@pytest.fixture
def attempt(tmp_path):
    """An attempt of a run, and its token, in a home whose server is not started yet."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tokens = AttemptTokens(home)
    with fresh_store(home) as store:
        run = store.runs.create(run_spec())
        made = store.transitions.begin_attempt(
            run.id,
            placement=[{"node": "n1", "gpus": [0]}],
            resume_from=None,
            token_sha256=tokens.sha256(f"{run.id}-1"),
        )
        store.attempts.update(made.id, dispatched_at=store.clock())
    return home, made, tokens.token(made.id)


def lines_of(home):
    return [json.loads(one) for one in (home / "logs" / "server.log").read_text().splitlines()]


def test_lines_about_an_attempt_have_its_run_and_attempt_as_fields(attempt):
    home, made, token = attempt
    server = Process(home)
    try:
        server.ready()
        with server.http() as http:
            http.headers["Authorization"] = f"Bearer {token}"
            http.headers["Lehr-Protocol"] = "1"
            # A checkpoint of another step than it says: read by the dispatcher's thread.
            elsewhere = "attempt-1/checkpoints/step-00000002"
            events = line("checkpoint", step=1, path=elsewhere, size_bytes=1, digest="0" * 64)
            path = f"/api/v1/attempts/{made.id}"
            put = http.put(f"{path}/streams/events.jsonl?offset=0", content=events)
            assert put.status_code == 200, put.text
            until(
                lambda: any("not a checkpoint" in one["event"] for one in lines_of(home)),
                within_s=60,
                what="the tick to read it",
            )
            # A report in a request's own thread: parts of it are dropped, and the run ends.
            report = {"code": 1, "reason": "exit", "parts": "none", "finished": [1]}
            sizes = {"events.jsonl": len(events)}
            done = http.post(f"{path}/exit", json={"exit": report, "sizes": sizes, "node_rank": 0})
            assert done.status_code == 200, done.text
            until(
                lambda: any("its run is" in one["event"] for one in lines_of(home)),
                within_s=60,
                what="the run's end",
            )
    finally:
        server.end()
    about = [one for one in lines_of(home) if made.run_id in one["event"]]
    assert len(about) >= 3, about
    assert all(one.get("run") == made.run_id for one in about), about
    assert all(one.get("attempt") == made.id for one in about), about
    # Fields of one request or action are not those of the next line.
    others = [one for one in lines_of(home) if "server" in one["event"]]
    assert others
    assert not any("run" in one or "attempt" in one for one in others)


@pytest.fixture
def own_logging():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in before[0] and handler.stream is not sys.stderr:
            handler.close()
    root.handlers[:], _ = before[0], root.setLevel(before[1])


def test_log_rotates_and_keeps_a_bounded_number_of_old_files(tmp_path, own_logging, monkeypatch):
    monkeypatch.setattr(server, "_LOG_BYTES", 2_000)
    server.configure_logs(tmp_path / "server.log")
    log = logging.getLogger("lehr.cluster.test")
    with bound_contextvars(**own_logs.of_attempt("k3x-2")):
        for number in range(200):
            log.warning("line %d", number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["server.log", *(f"server.log.{n}" for n in range(1, server._OLD_LOGS + 1))]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    newest = [json.loads(one) for one in (tmp_path / "server.log").read_text().splitlines()]
    assert {(one["run"], one["attempt"]) for one in newest} == {("k3x", "k3x-2")}
    assert newest[-1]["event"] == "line 199"
