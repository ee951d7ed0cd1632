"""A fork on the real platform: a run that continues from the checkpoint of another run."""

from __future__ import annotations

import json

import pytest

from lehr.errors import NotFound
from lehr_testing.server import events
from lehr_testing.specs import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]


def records(server, run_id, kind):
    return [record for record in events(server.home, f"{run_id}-1") if record["kind"] == kind]


@pytest.mark.nightly  # The next test trains a fork, too.
def test_fork_with_half_the_lr_a_short_warmup_and_a_higher_floor(server, corpus):
    """A run diverges; a fork continues from an earlier checkpoint with a lower rate."""
    client = server.client()
    source = client.submit(
        run(corpus, "to-rescue", steps=20, checkpoint={"every": 5, "keep_last": 10})
    )
    source.wait(timeout_s=300)
    assert source.state == "completed", source.reason
    with pytest.raises(NotFound, match="step 12") as caught:
        source.fork(step=12)
    assert "The nearest is at step 10" in str(caught.value)

    base = source.config.optimizer.lr
    fork = source.fork(
        step=10,
        changes={
            "train.optimizer.lr": base / 2,
            "train.schedule.warmup_steps": 2,
            "train.schedule.min_lr_ratio": 0.5,
            "train.steps": 16,
        },
    )
    assert (fork.name, fork.view.forked_from) == ("to-rescue-fork-10", source.id)
    fork.wait(timeout_s=300)
    assert fork.state == "completed", fork.reason
    [resumed] = records(server, fork.id, "resumed")
    assert resumed["step"] == 10
    assert resumed["checkpoint"].startswith(str(server.home / "runs" / source.id))
    [started] = records(server, source.id, "started")
    assert started["attempt"] == 1

    fork_metrics = records(server, fork.id, "metrics")
    assert [record["step"] for record in fork_metrics] == list(range(11, 17))
    tokens = {record["step"]: record["tokens"] for record in records(server, source.id, "metrics")}
    assert [record["tokens"] for record in fork_metrics] == [
        tokens[10] + 256 * n for n in range(1, 7)
    ]
    rates = [record["values"]["train/lr"] for record in fork_metrics]
    assert max(rates) == pytest.approx(base / 2)
    assert rates[:2] == pytest.approx([base / 4, base / 2])
    assert rates[-1] == pytest.approx(base / 4)
    # The loss continues from that of the checkpoint, not from that of fresh weights.
    before = {r["step"]: r["values"]["train/loss"] for r in records(server, source.id, "metrics")}
    assert fork_metrics[0]["values"]["train/loss"] == pytest.approx(before[11], rel=1e-3)
    assert before[11] < 0.95 * before[1]


@pytest.mark.nightly  # api/test_forks.py has the choice of the checkpoint.
def test_fork_by_command_with_other_data_uses_the_newest_checkpoint(server, corpus, tmp_path):
    client = server.client()
    source = client.submit(run(corpus, "cli-source", steps=6))
    source.wait(timeout_s=300)
    other = tmp_path / "other"
    other.mkdir()
    for n in range(40):
        (other / f"{n}.txt").write_text(f"other words, number {n}: " * 80)
    paths = json.dumps([str(other)])
    refused = server.cli("fork", "cli-source", check=False)
    assert refused.returncode == 2
    assert "train.steps is 6, but the checkpoint is at step 6" in refused.stderr
    done = server.cli(
        "fork", "cli-source", "train.steps=9", f"train.data.corpus.paths={paths}", "-w"
    )
    assert "continues from step 6 of cli-source" in done.stdout
    fork = client.run("cli-source-fork-6")
    assert fork.state == "completed", fork.reason
    assert list(fork.history("train/loss")["step"]) == [7, 8, 9]
