"""The main job through the real platform: HTTP, Ray, shims, torchrun, the real trainer."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from lehr.errors import SpecError, UserError
from lehr_testing.fakes import faked, paced
from lehr_testing.server import events, held_locks, marked_processes, rank_pids
from lehr_testing.specs import lr_sweep, run
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]

SIXTEEN = {"sequences": 16, "sequence_length": 64}
RATES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 6e-2, 1e-1]


def digest_of_weights(server, run_id, attempt, step):
    """SHA-256 by file of a checkpoint's tensors, from its manifest."""
    path = server.home / "runs" / run_id / f"attempt-{attempt}" / "checkpoints" / f"step-{step:08d}"
    manifest = json.loads((path / "manifest.json").read_text())
    return {
        name: entry["sha256"]
        for name, entry in manifest["files"].items()
        if name.endswith(".safetensors")
    }


@pytest.mark.nightly  # test_demo.py ranks eight trials; test_cluster_runs.py shares the GPUs.
def test_ten_trials_share_eight_gpus_and_are_ranked(server, corpus):
    client = server.client()
    sweep = client.sweep(lr_sweep(corpus, "grid", RATES))
    sweep.wait(timeout_s=400)
    trials = sweep.refresh().trials
    assert [trial.run.state for trial in trials] == ["completed"] * 10
    assert sorted(trial.rank for trial in trials) == list(range(1, 11))
    best = min(trials, key=lambda trial: trial.value)
    assert best.best
    assert best.rank == 1
    assert all(math.isfinite(trial.value) for trial in trials)

    spans = defaultdict(list)
    for trial in trials:
        records = events(server.home, f"{trial.run.id}-1")
        started = next(record for record in records if record["kind"] == "started")
        [placed] = trial.run.placement
        assert started["host"]["cuda_visible_devices"] == str(placed.gpu)
        spans[placed.gpu].append((started["time"], records[-1]["time"]))
    assert set(spans) == set(range(8))
    for on_gpu in spans.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(on_gpu)):
            assert end <= start


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


def test_more_gpus_than_the_cluster_has_are_rejected_and_not_recorded(server, corpus):
    client = server.client()
    with pytest.raises(UserError, match="16") as caught:
        client.submit(run(corpus, "too-big", gpus=16, batch=SIXTEEN))
    # Others that share this cluster may have added a node.
    assert re.search(r"this cluster has [89] x logical GPU", str(caught.value))
    assert not [r for r in client.runs() if r.name == "too-big"]


def test_missing_corpus_is_rejected_at_submission(server, tmp_path):
    client = server.client()
    with pytest.raises((SpecError, UserError), match="nowhere"):
        client.submit(run(tmp_path / "nowhere", "no-corpus"))
    assert not [r for r in client.runs() if r.name == "no-corpus"]
