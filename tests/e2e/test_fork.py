"""A fork on the real platform: a run that continues from the checkpoint of another run."""

from __future__ import annotations

import json

import pytest

from lehr_testing.specs import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]


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
