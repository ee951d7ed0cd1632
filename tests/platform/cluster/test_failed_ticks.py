"""A tick that fails, or a part of it: what had arrived and what had changed is not lost."""

from __future__ import annotations

import pytest

from lehr.cluster import dispatcher
from lehr.cluster.launcher import Launcher
from lehr.errors import StoreUnavailable
from lehr.specs import SweepSpec, expand, load_spec
from lehr_testing.dispatching import Bench


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch, gpus=3)
    yield made
    made.store.close()


@pytest.mark.parametrize("part", ["reading", "deciding", "acting"])
def test_what_a_failed_tick_has_read_is_decided_on_by_the_next_one(bench, monkeypatch, part):
    run, attempt = bench.running()
    bench.listed.pop(attempt)
    bench.news()
    bench.exited(attempt, code=1, reason="ecc", log_tail="uncorrectable ECC error encountered")
    trials = {"train.seed": {"values": [0, 1]}}
    plain = {"kind": "sweep", "name": "s", "method": "grid", "metric": {"name": "train/loss"}}
    train = bench.store.runs.get(run).spec["train"]
    spec = load_spec(plain | {"parameters": trials, "run": {"train": train}})
    assert isinstance(spec, SweepSpec)
    sweep = bench.store.sweeps.create(spec, expand(spec))
    broken = {
        "reading": (bench.dispatcher._loader, "_why_no_cluster"),
        "deciding": (dispatcher, "step"),
        "acting": (bench.dispatcher._executor, "apply"),
    }

    def refuse(*_args):
        raise StoreUnavailable("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(*broken[part], refuse)
        with pytest.raises(StoreUnavailable):
            bench.tick()
    snapshot = bench.dispatcher._loader.load(unread=())
    assert [one.id for one in snapshot.sweeps] == [sweep.id]
    assert [one.node for one in snapshot.ends] == ["n1"]


def test_start_of_one_run_that_cannot_be_recorded_is_its_own_fault(bench, monkeypatch, caplog):
    odd, sound = bench.waiting("odd"), bench.waiting("sound")
    recorded = Launcher.record_start

    def record(launcher, attempt_id):
        if attempt_id == f"{odd}-1":
            raise ValueError
        recorded(launcher, attempt_id)

    monkeypatch.setattr(Launcher, "record_start", record)
    for _ in range(3):
        bench.tick()
    assert bench.store.attempts.get(f"{sound}-1").dispatched_at is not None
    assert bench.state(odd) == ("starting", 1)
    [line] = [one.message for one in caplog.records if odd in one.message]
    assert line == f"run {odd}: recording its start failed"


def test_failed_tick_does_not_count_as_the_last_one(bench, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(bench.dispatcher.heartbeats, "now", lambda: now[0])
    bench.tick()
    now[0] = 130.0
    with monkeypatch.context() as patch:

        def refuse(_snapshot):
            raise StoreUnavailable("The disk is full.")

        patch.setattr(dispatcher, "step", refuse)
        with pytest.raises(StoreUnavailable):
            bench.tick()
    assert bench.dispatcher.since_tick_s() == 30.0
    bench.tick()
    assert bench.dispatcher.since_tick_s() == 0.0
