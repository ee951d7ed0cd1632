"""Starts that an agent rejects, and exits of a gang: the resulting state of the run."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from lehr.app.presenters.cluster import cluster_view
from lehr.cluster.bridge_client import AgentRefused
from lehr.cluster.exits import excluded
from lehr.control.reconcile import START_TRIES
from lehr.faces.cli.cluster_checks import troubles
from lehr.node.attempt_dir import AttemptDir
from lehr.node.shim import Shim
from lehr_testing.dispatching import Bench
from lehr_testing.stores import begin, line, run_spec

STEP = "attempt-1/checkpoints/step-00000005"


# ------------------------------------------------------------------------------------- starts


def starts(bench: Bench) -> Counter[str]:
    return Counter(f["launch"]["attempt_id"] for op, f in bench.asked if op == "start")


def test_rejected_start_is_retried_with_growing_delay_and_then_fails(bench):
    bench.refusal = "no space left for its folder"
    run = bench.waiting()
    asked: list[float] = []
    known = 0
    while bench.store.runs.get(run).attempt < 2 and bench.elapsed < 200:
        bench.tick(0.5)
        if starts(bench)[f"{run}-1"] > known:
            known = starts(bench)[f"{run}-1"]
            asked.append(bench.elapsed)
    assert known == START_TRIES == 5
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == [pytest.approx(wanted, abs=1.1) for wanted in (2, 4, 8, 16)]
    [first, *_] = bench.store.attempts.of_run(run)
    assert first.exit["reason"] == "launch_failed"
    assert first.exit["detail"] == (
        "its node did not start it in 5 tries: no space left for its folder"
    )
    # The node that refused it is named, so that it can be taken out of use.
    assert first.exit["node"] == "n1"
    row = bench.store.runs.get(run)
    assert (row.cause, row.infrastructure_failures) == ("placed", 1)
    assert [m.cause for m in bench.store.transitions.of_run(run)][-2:] == [
        "launch_failed",
        "placed",
    ]


def test_node_that_rejects_every_start_is_excluded_at_once(bench, monkeypatch):
    """No other attempt has to end before the node is checked."""
    member = {"address": "a", "gpus": 1, "alive": True}
    nodes = [{"name": name, "ray_id": name, **member} for name in ("n1", "n2")]
    bench.dispatcher._on_news({"news": "members", "nodes": nodes})
    gpu = {"index": 0, "name": "logical GPU", "memory_bytes": None, "uuid": None}
    hello = {"attempts": {}, "gpus": [gpu], "cpus": 2}
    for name in ("n1", "n2"):
        bench.dispatcher._on_news({"news": "node", "name": name, "hello": hello})

    def request(op, node, **fields):
        bench.refusal = "no space left" if node == "n1" else None
        return bench.request(op, node, **fields)

    monkeypatch.setattr(bench.dispatcher._bridge, "request", request)
    run = bench.waiting(retries={"infrastructure": 5})
    for _ in range(200):
        bench.tick(1.0)
        if bench.store.runs.get(run).attempt == 3:
            break
    causes = [attempt.exit["reason"] for attempt in bench.store.attempts.of_run(run)[:2]]
    assert causes == ["launch_failed"] * 2
    assert excluded(bench.store.nodes.notes()) == {
        "n1": f"it failed 2 attempts in a row: {run}-1 (launch_failed), {run}-2 (launch_failed)"
    }


@pytest.mark.parametrize("refused_first", [True, False])
def test_gang_is_dispatched_only_when_every_node_has_confirmed(bench, refused_first):
    placement = [{"node": "n1", "gpus": [0]}, {"node": "n2", "gpus": [0]}]
    run = bench.store.runs.create(run_spec("gang"))
    gang = begin(bench.store, run.id, placement=placement)
    launcher = bench.dispatcher._launcher

    def answered(*answers: tuple[str, Exception | None]) -> float | None:
        bench.dispatcher.heartbeats.of(gang.id).in_flight = len(answers)
        launcher._answers.extend((gang.id, node, error) for node, error in answers)
        bench.dispatcher._inbox.record()
        return bench.store.attempts.get(gang.id).dispatched_at

    both = [("n1", None), ("n2", AgentRefused("full"))]
    assert answered(*(both[::-1] if refused_first else both)) is None
    assert answered(("n1", None), ("n2", None)) is not None


# -------------------------------------------------------------------------------- ends of gangs


def part(at: float, **note) -> dict:
    return {"code": 1, "signal": None, "reason": "", "log_tail": "", "ended_at": at} | note


def gang(bench: Bench) -> str:
    run = bench.store.runs.get(bench.waiting("gang"))
    bench.store.transitions.begin_attempt(
        run.id,
        placement=[{"node": "n1", "gpus": [0]}, {"node": "n2", "gpus": [0]}],
        resume_from=None,
        token_sha256="0" * 64,
    )
    return run.id


def report(bench: Bench, attempt: str, rank: int, note: dict) -> bool:
    sizes = bench.store.streams.sizes(attempt)
    body = {"exit": note, "sizes": sizes, "node_rank": rank}
    return bench.dispatcher.on_exit(attempt, body)["closed"]


def test_a_gang_is_finalized_by_its_first_failure(bench):
    """Rank 0 lost its peer, which ran out of memory: a retry would fail in the same way."""
    run = gang(bench)
    lost = line("finished", step=3, outcome="failed", cause="peer_lost", message="rank 1 is gone")
    bench.store.streams.append(f"{run}-1", "events.jsonl", 0, line("started") + lost)
    assert report(bench, f"{run}-1", 1, part(10.0, log_tail="torch.OutOfMemoryError: CUDA"))
    assert bench.state(run)[0] == "starting"
    assert bench.store.attempts.get(f"{run}-1").exited_at is None
    assert report(bench, f"{run}-1", 0, part(11.0, log_tail="ncclRemoteError: a peer exited"))
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("failed", "out_of_memory")
    assert not bench.store.attempts.get(f"{run}-1").open


# ------------------------------------------------------------------- checkpoints that cannot be had


def shim(tmp_path, fetch: list[dict]) -> Shim:
    """A shim before its training starts; its entry lists these copies."""
    folder = tmp_path / "entry"
    folder.mkdir()
    launch = {
        "run_dir": str(tmp_path / "run"),
        "attempt_dir": str(tmp_path / "run" / "attempt-2"),
        "gang": {"per_node": 1},
        "env": {},
        "nonce": "test-of-a-fetch",
        "fetch": fetch,
    }
    (folder / "launch.json").write_text(json.dumps(launch))
    return Shim(AttemptDir(str(folder)), launch)


def test_start_fails_with_the_reason_if_no_storage_has_the_checkpoint(tmp_path):
    nowhere = f"file://{tmp_path}/copies/{STEP}"
    reason, detail = shim(tmp_path, [{"path": STEP, "url": nowhere}]).fetch_checkpoint()
    assert reason == "checkpoint_unreachable"
    assert "no checkpoint to resume from" in detail
    assert nowhere in detail


def end_by_lost_shim(bench: Bench, run: str, step: int | None) -> None:
    """The newest attempt starts, saves at ``step`` if given, and its shim is killed."""
    bench.tick()
    number = bench.store.runs.get(run).attempt
    attempt = f"{run}-{number}"
    bench.heartbeat(attempt, step=None)
    lines = line("started", schema_version=1, attempt=number)
    if step is not None:
        path = f"attempt-{number}/checkpoints/step-{step:08d}"
        lines += line(
            "checkpoint", step=step, path=path, size_bytes=1, digest="d", reason="interval"
        )
    bench.store.streams.append(attempt, "events.jsonl", 0, lines)
    bench.tick()
    bench.exited(attempt, code=None, reason="shim_lost", log_tail="")


def test_infrastructure_budget_heals_with_each_newer_checkpoint(bench):
    run = bench.waiting(retries={"infrastructure": 2})
    for step in (5, 10, 15, 20, 25):
        end_by_lost_shim(bench, run, step)
        row = bench.store.runs.get(run)
        assert (row.state, row.infrastructure_failures) == ("queued", 1)
    # Without a newer one, it is used up.
    end_by_lost_shim(bench, run, None)
    assert bench.state(run) == ("queued", 6)
    assert bench.store.runs.get(run).infrastructure_failures == 2
    end_by_lost_shim(bench, run, 25)
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("failed", "shim_lost")
    assert "no retry is left" in row.reason


def test_living_attempt_that_the_record_never_had_is_left_alone_and_shown(bench):
    bench.listed["k3f9x2ab-4"] = {"state": "live", "gpus": [0], "exit": None}
    waiting = bench.waiting()
    for _ in range(30):
        bench.tick()
    assert bench.asked == []
    assert bench.state(waiting) == ("queued", 0)
    view = cluster_view(bench.dispatcher.cluster, bench.store)
    assert view.gpus_free == 0
    assert view.nodes[0].gpus[0].run_name == "k3f9x2ab-4"
    [check] = troubles(view)
    assert check.found.startswith("trains k3f9x2ab-4, which is not in lehr.db")
