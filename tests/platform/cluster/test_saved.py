"""A run that is queued again: where its checkpoints are, as the dispatcher reads it."""

from __future__ import annotations

import pytest

from lehr.cluster.membership import Cluster
from lehr.cluster.run_values import saved
from lehr.control.queue_entries import Saved
from lehr.store.records.checkpoints import CopyReport
from lehr.store.tables import CheckpointRow
from lehr_testing.dispatching import Bench
from lehr_testing.stores import begin, next_attempt, run_spec


def path(attempt: int, step: int) -> str:
    return f"attempt-{attempt}/checkpoints/step-{step:08}"


def save(store, run_id: str, attempt: int, step: int) -> None:
    row = CheckpointRow(
        run_id=run_id,
        attempt=attempt,
        step=step,
        path=path(attempt, step),
        size_bytes=1,
        digest="d",
        reason="interval",
        created_at=0.0,
    )
    with store.db.write() as session:
        session.add(row)


def on(*nodes: str) -> list[dict]:
    return [{"node": node, "gpus": [0]} for node in nodes]


def test_checkpoints_lie_on_the_first_node_of_the_attempt_that_wrote_them(store):
    run = store.runs.create(run_spec())
    assert saved(store, run) is None
    begin(store, run.id, placement=on("n1", "n2"))
    assert saved(store, store.runs.get(run.id)) is None
    save(store, run.id, 1, 5)
    assert saved(store, store.runs.get(run.id)) == Saved(("n1",))
    next_attempt(store, run.id)
    with store.db.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE attempts SET placement = ? WHERE id = ?",
            ('[{"node": "n3", "gpus": [0]}]', f"{run.id}-2"),
        )
    save(store, run.id, 2, 7)
    assert saved(store, store.runs.get(run.id)) == Saved(("n3", "n1"))
    store.checkpoints.mark_removed(run.id, attempt=1, step=5)
    assert saved(store, store.runs.get(run.id)) == Saved(("n3",))
    store.checkpoints.note_copies(run.id, [CopyReport(path(2, 7), "file:///c", "there")])
    assert saved(store, store.runs.get(run.id)) == Saved(("n3",), copied=True)
    # Its files are gone, its copy is not.
    store.checkpoints.mark_removed(run.id, attempt=2, step=7)
    assert saved(store, store.runs.get(run.id)) == Saved((), copied=True)


def test_fork_starts_where_its_parents_checkpoint_is(store):
    parent = store.runs.create(run_spec())
    begin(store, parent.id, placement=on("n2"))
    save(store, parent.id, 1, 5)
    save(store, parent.id, 1, 6)
    fork = store.runs.create(
        run_spec("fork"), resume_from=f"/runs/{parent.id}/{path(1, 5)}", forked_from=parent.id
    )
    assert saved(store, fork) == Saved(("n2",))
    store.checkpoints.mark_removed(parent.id, attempt=1, step=5)
    assert saved(store, fork) is None


def news(cluster: Cluster, name: str, folder: str | None) -> None:
    gpus = [{"index": 0, "name": "logical GPU"}]
    hello = {"attempts": {}, "gpus": gpus, "cpus": 2}
    if folder is not None:
        hello["runs_folder"] = folder
    cluster.on_news({"news": "node", "name": name, "hello": hello})


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    members = [
        {"name": name, "ray_id": name, "address": "a", "gpus": 1, "alive": True}
        for name in ("n1", "n2")
    ]
    made.dispatcher._on_news({"news": "members", "nodes": members})
    yield made
    made.store.close()


def test_requeued_run_is_placed_on_the_node_that_has_its_checkpoint(bench):
    cluster = bench.dispatcher.cluster
    news(cluster, "n1", "a")
    news(cluster, "n2", "b")
    run = bench.store.runs.create(run_spec())
    begin(bench.store, run.id, placement=on("n2"))
    save(bench.store, run.id, 1, 5)
    bench.store.attempts.update(
        f"{run.id}-1",
        exited_at=1.0,
        exit={"code": 1, "reason": "shim_lost", "synthetic": True, "ended_at": 1.0},
    )
    bench.tick()
    assert bench.state(run.id) == ("starting", 2)
    second = bench.store.attempts.get(f"{run.id}-2")
    assert second.placement == [{"node": "n2", "gpus": [0]}]
    assert second.resume_from == path(1, 5)
