"""The main job through the real platform: HTTP, Ray, shims, torchrun, the real trainer."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from pathlib import Path

import pytest

from lehr.cluster import ray_head
from lehr.errors import SpecError, UserError
from lehr_testing.server import PACED, alive, events, marked_processes
from lehr_testing.specs import lr_sweep, run
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIXTEEN = {"sequences": 16, "sequence_length": 64}
RATES = [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]


def metric_records(server, attempt_id):
    return [record for record in events(server.home, attempt_id) if record["kind"] == "metrics"]


def digest_of_weights(server, run_id, attempt, step):
    """SHA-256 by file of a checkpoint's tensors, from its manifest."""
    path = server.home / "runs" / run_id / f"attempt-{attempt}" / "checkpoints" / f"step-{step:08d}"
    manifest = json.loads((path / "manifest.json").read_text())
    return {
        name: entry["sha256"]
        for name, entry in manifest["files"].items()
        if name.endswith(".safetensors")
    }


def test_eight_trials_run_one_on_each_of_eight_gpus_and_are_ranked(server, corpus):
    client = server.client()
    sweep = client.sweep(lr_sweep(corpus, "grid", RATES))
    sweep.wait(timeout_s=400)
    cells = sweep.refresh().cells
    assert [cell.run.state for cell in cells] == ["completed"] * 8
    assert sorted(cell.rank for cell in cells) == list(range(1, 9))
    best = min(cells, key=lambda cell: cell.value)
    assert best.best
    assert best.rank == 1
    assert all(math.isfinite(cell.value) for cell in cells)

    seen = []
    for cell in cells:
        records = events(server.home, f"{cell.run.id}-1")
        started = next(record for record in records if record["kind"] == "started")
        assert started["host"]["cuda_visible_devices"] == str(cell.run.placement[0].gpu)
        first, last = started["time"], records[-1]["time"]
        seen.append((cell.run.placement[0].gpu, first, last))
    for gpu in range(8):
        spans = sorted((first, last) for index, first, last in seen if index == gpu)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert {gpu for gpu, _, _ in seen} == set(range(8))


def test_a_run_of_two_ranks_trains_through_the_platform_as_one_rank_does(server, corpus):
    client = server.client()
    two = client.submit(run(corpus, "two-ranks", gpus=2, steps=10))
    one = client.submit(run(corpus, "one-rank", gpus=1, steps=10))
    two.wait(timeout_s=300)
    one.wait(timeout_s=300)
    assert (two.state, one.state) == ("completed", "completed")
    losses = {
        name: [record["values"]["train/loss"] for record in metric_records(server, f"{r.id}-1")]
        for name, r in (("two", two), ("one", one))
    }
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-4)
    names = {stream.name for stream in two.log_streams()}
    assert {"rank-0.log", "rank-1.log"} <= names


def test_a_killed_trainer_resumes_and_ends_with_the_same_weights_bit_for_bit(own_server, corpus):
    server, client = own_server, own_server.client()
    undisturbed = client.submit(run(corpus, "undisturbed", steps=120))
    undisturbed.wait(timeout_s=300)
    killed = client.submit(run(corpus, "killed", steps=120, retries={"user": 1}))

    def far_enough():
        view = killed.refresh()
        return any(c.step >= 10 for c in killed.checkpoints()) and view.state == "running"

    until(far_enough, within_s=120, what="a checkpoint past step 10")
    ranks = [
        pid
        for pid, line in marked_processes(f"{killed.id}-1").items()
        if PACED in line and "torch.distributed.run" not in line
    ]
    assert ranks
    os.kill(ranks[0], signal.SIGKILL)
    killed.wait(timeout_s=300)
    assert killed.state == "completed"
    assert killed.refresh().attempt == 2
    assert digest_of_weights(server, killed.id, 2, 120) == digest_of_weights(
        server, undisturbed.id, 1, 120
    )
    history = killed.history("train/loss")
    assert list(history["step"]) == list(range(1, 121))
    assert list(history["train/loss"]) == list(undisturbed.history("train/loss")["train/loss"])


def test_cancel_frees_the_gpu_and_leaves_no_process(server, corpus):
    client = server.client()
    r = client.submit(run(corpus, "to-cancel", steps=100_000))
    until(lambda: r.refresh().state == "running", within_s=120, what="the run to run")
    assert marked_processes(f"{r.id}-1")
    r.cancel()
    r.wait(timeout_s=60)
    assert r.state == "cancelled"
    until(lambda: not marked_processes(f"{r.id}-1"), within_s=30, what="no process of the run left")
    busy = [gpu.run_id for node in client.cluster().nodes for gpu in node.gpus]
    assert r.id not in busy


def test_more_gpus_than_the_cluster_has_is_said_at_submission_and_nothing_is_recorded(
    server, corpus
):
    client = server.client()
    with pytest.raises(UserError, match="16") as caught:
        client.submit(run(corpus, "too-big", gpus=16, batch=SIXTEEN))
    assert "8" in str(caught.value)
    assert not [r for r in client.runs() if r.name == "too-big"]


def test_a_corpus_that_does_not_exist_is_said_at_submission(server, tmp_path):
    client = server.client()
    with pytest.raises((SpecError, UserError), match="nowhere"):
        client.submit(run(tmp_path / "nowhere", "no-corpus"))
    assert not [r for r in client.runs() if r.name == "no-corpus"]


def test_the_api_may_be_killed_and_the_run_ends_with_no_gap_and_no_duplicate(own_server, corpus):
    client = own_server.client()
    r = client.submit(run(corpus, "survivor", steps=400))
    until(lambda: (r.refresh().step or 0) >= 5, within_s=120, what="step 5")
    trainers = marked_processes(f"{r.id}-1")
    own_server.kill()
    path = own_server.home / "runs" / r.id / "attempt-1" / "events.jsonl"
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size, within_s=60, what="the training to go on alone")
    client = own_server.up()
    r = client.run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.refresh().attempt) == ("completed", 1)
    history = r.history("train/loss")
    assert list(history["step"]) == list(range(1, 401))
    assert (
        own_server.home / "replica" / f"{r.id}-1" / "events.jsonl"
    ).read_bytes() == path.read_bytes()
    until(
        lambda: not any(alive(pid) for pid in trainers),
        within_s=30,
        what="the end of its processes",
    )


def test_the_agent_may_be_killed_and_the_run_is_adopted(own_server, corpus):
    client = own_server.client()
    r = client.submit(run(corpus, "adopted", steps=400))
    until(lambda: (r.refresh().step or 0) >= 5, within_s=120, what="step 5")
    [agent] = agent_pids(own_server)
    os.kill(agent, signal.SIGKILL)
    r.wait(timeout_s=300)
    assert (r.state, r.refresh().attempt) == ("completed", 1)
    assert list(r.history("train/loss")["step"]) == list(range(1, 401))


def agent_pids(server):
    """Lehr's own agents: Ray names a worker's process after its actor."""
    head = ray_head.recorded(server.home)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in head.processes()}
    return [pid for pid, command in commands.items() if command.rstrip(b"\0") == b"ray::Agent"]
