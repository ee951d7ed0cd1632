"""A disk is full: acknowledged data is kept, the reason is reported, work continues with space."""

from __future__ import annotations

import pytest

from lehr.errors import LehrError
from lehr_testing.faults.disks import small_disk
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


def server_at(folder, *, runs=None) -> FaultServer:
    corpus = text_corpus(folder / "corpus")
    server = FaultServer(folder / "home", gpus=2, corpus=corpus)
    if runs is not None:
        server.environment["LEHR_RUNS"] = str(runs)
    return server


def test_streams_wait_while_the_disk_of_the_replica_is_full(tmp_path):
    server = server_at(tmp_path)
    with small_disk(tmp_path / "home" / "replica", megabytes=2) as disk:
        server.up()
        try:
            server.cluster_ready()
            run = server.submit(server.spec("full-replica", steps=600, step_s=0.1))
            until(lambda: server.step(f"{run.id}-1") >= 5, within_s=90, what="it to train")
            disk.fill()
            now = server.step(f"{run.id}-1")
            [entry] = server.entries()
            log = tmp_path / "home" / "node" / entry.path.split("/node/")[1] / "shim.log"
            until(
                lambda: "MiB for the database" in log.read_text(),
                within_s=60,
                what="the shipper to receive the reason",
            )
            until(lambda: server.step(f"{run.id}-1") > now + 20, within_s=60, what="it to train on")
            assert server.state(run) == "running"
            disk.free()
            assert server.ends(run) == ["completed"]
            assert server.client().run(run.id).attempt == 1
            server.verdict()
        finally:
            server.down()


def test_submissions_are_rejected_while_the_disk_of_the_home_is_full(tmp_path):
    server = server_at(tmp_path, runs=tmp_path / "runs")
    server.runs = tmp_path / "runs"
    with small_disk(tmp_path / "home", megabytes=48) as disk:
        server.up()
        try:
            server.cluster_ready()
            run = server.submit(server.spec("full-home", steps=120, step_s=0.1))
            until(lambda: server.step(f"{run.id}-1") >= 5, within_s=90, what="it to train")
            disk.fill()
            with pytest.raises(LehrError, match="full") as refused:
                server.client().submit(server.spec("refused", steps=3))
            assert "lehr.db" in str(refused.value)
            assert [r.name for r in server.client().runs()] == ["full-home"]
            until(
                lambda: server.step(f"{run.id}-1") == 120,
                within_s=120,
                what="it to train to its end",
            )
            disk.free()
            assert server.ends(run) == ["completed"]
            again = server.submit(server.spec("accepted", steps=3))
            assert server.ends(again) == ["completed"]
            assert server.client().run(run.id).attempt == 1
            server.verdict()
        finally:
            server.down()


def test_runs_wait_for_space_in_their_folder_and_then_resume_by_themselves(tmp_path):
    runs = tmp_path / "runs"
    server = server_at(tmp_path, runs=runs)
    server.runs = runs
    with small_disk(runs, megabytes=4) as disk:
        server.up()
        try:
            server.cluster_ready()
            spec = server.spec("full-runs", steps=100, step_s=0.1, CHECKPOINT_EVERY=5)
            run = server.submit(spec)
            until(lambda: server.step(f"{run.id}-1") >= 11, within_s=90, what="checkpoints")
            disk.fill()
            until(lambda: server.state(run) == "queued", within_s=60, what="it to end")
            full = f"no space for runs: {runs} has 0 MB free"
            node = until(
                lambda: next((n for n in server.client().cluster().nodes if n.problems), None),
                within_s=60,
                what="the node to report it",
            )
            assert full in str(node.no_runs)
            later = server.submit(server.spec("later", steps=3))

            def reasons():
                return [one.reason for one in server.client().queue()]

            until(lambda: full in str(reasons()[-1:]), within_s=60, what="the reason")
            assert server.client().run(later.id).attempt == 0
            assert "disk is full" in server.client().run(run.id).reason
            disk.free()
            assert server.ends(run, later) == ["completed", "completed"]
            assert server.client().run(run.id).attempt == 2
            resumed = [e.step for e in server.client().run(run.id).events() if e.kind == "resumed"]
            assert len(resumed) == 1
            assert resumed[0] >= 10
            server.verdict()
        finally:
            server.down()
