"""The main job through the real platform: HTTP, Ray, shims, torchrun, the real trainer."""

from __future__ import annotations

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
