"""The main job through the real platform: HTTP, Ray, shims, torchrun, the real trainer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from lehr_testing.fakes import faked, paced
from lehr_testing.server import held_locks, marked_processes, rank_pids
from lehr_testing.specs import run
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]


def digest_of_weights(server, run_id, attempt, step):
    """SHA-256 by file of a checkpoint's tensors, from its manifest."""
    path = server.home / "runs" / run_id / f"attempt-{attempt}" / "checkpoints" / f"step-{step:08d}"
    manifest = json.loads((path / "manifest.json").read_text())
    return {
        name: entry["sha256"]
        for name, entry in manifest["files"].items()
        if name.endswith(".safetensors")
    }


def test_each_of_two_ranks_trains_and_locks_its_own_gpu(server, corpus):
    client = server.client()
    r = client.submit(paced(run(corpus, "two-ranks", gpus=2, steps=10_000)))
    until(lambda: (r.refresh().step or 0) >= 1, within_s=120, what="the first step")
    ranks = rank_pids(f"{r.id}-1")
    assert len(ranks) == 2
    placed = {f"gpu-{share.gpu}.lock" for share in r.detail.placement}
    assert len(placed) == 2
    # torchrun hands on no descriptor: what a rank holds, it has locked itself.
    for rank in ranks:
        assert placed <= {Path(path).name for path in held_locks(rank)}
    r.cancel()
    r.wait(timeout_s=60)
    names = {stream.name for stream in r.log_streams()}
    assert {"rank-0.log", "rank-1.log"} <= names


@pytest.mark.nightly  # trainer/process/test_runs.py kills and compares.
def test_killed_trainer_resumes_with_bitwise_equal_weights(server, corpus):
    client = server.client()
    undisturbed = client.submit(run(corpus, "undisturbed", steps=120))
    killed = client.submit(paced(run(corpus, "killed", steps=120, retries={"user": 1})))

    def far_enough():
        view = killed.refresh()
        return any(c.step >= 10 for c in killed.checkpoints()) and view.state == "running"

    until(far_enough, within_s=120, what="a checkpoint past step 10")
    [rank] = rank_pids(f"{killed.id}-1")
    os.kill(rank, signal.SIGKILL)
    for r in (undisturbed, killed):
        r.wait(timeout_s=300)
        assert r.state == "completed", r.reason
    assert killed.refresh().attempt == 2
    assert digest_of_weights(server, killed.id, 2, 120) == digest_of_weights(
        server, undisturbed.id, 1, 120
    )
    history = killed.history("train/loss")
    assert list(history["step"]) == list(range(1, 121))
    assert list(history["train/loss"]) == list(undisturbed.history("train/loss")["train/loss"])


def test_cancel_releases_the_gpu_and_leaves_no_process(server, corpus):
    client = server.client()
    r = client.submit(faked(run(corpus, "to-cancel", steps=100_000)))
    until(lambda: r.refresh().state == "running", within_s=120, what="the run to run")
    assert marked_processes(f"{r.id}-1")
    r.cancel()
    r.wait(timeout_s=60)
    assert r.state == "cancelled"
    until(lambda: not marked_processes(f"{r.id}-1"), within_s=30, what="no process of the run left")
    busy = [gpu.run_id for node in client.cluster().nodes for gpu in node.gpus]
    assert r.id not in busy
