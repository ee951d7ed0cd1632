"""Loading a snapshot reads: it records nothing, and begins no clock."""

from __future__ import annotations

from lehr.control.lifecycle import Desired
from lehr_testing import seeding
from lehr_testing.dispatching import Bench
from lehr_testing.stores import line


def load(bench: Bench):
    return bench.dispatcher._loader.load(bench.dispatcher._inbox.unread.seen())


def test_exit_is_decided_on_only_when_its_events_are_read(bench):
    run, attempt = bench.running()
    bench.listed.pop(attempt)
    done = line("finished", step=1000, outcome="completed")
    size = bench.store.streams.sizes(attempt)["events.jsonl"]
    bench.store.streams.append(attempt, "events.jsonl", size, done)
    lost = {"code": None, "reason": "node_lost", "synthetic": True, "node": "n1"}
    bench.store.attempts.update(attempt, exit=lost, exited_at=bench.store.clock())
    before = bench.store.attempts.get(attempt)
    assert load(bench).ended == []
    assert bench.store.attempts.get(attempt) == before
    bench.tick()
    assert bench.state(run) == ("completed", 1)


def test_trial_that_exited_is_one_of_its_sweep_until_its_end_is_recorded(bench):
    store = bench.store
    spec = seeding.lr_sweep("narrow", [1e-4, 1e-3]).model_copy(update={"max_concurrent": 1})
    sweep, (one, two) = seeding.create_sweep(store, spec)
    bench.tick()
    attempt = f"{one.id}-1"
    assert load(bench).exited == {}
    done = line("started", schema_version=1, attempt=1)
    done += line("finished", step=1000, outcome="completed")
    store.streams.append(attempt, "events.jsonl", 0, done)
    bench.listed.pop(attempt)
    store.attempts.update(attempt, exit={"code": 0}, exited_at=store.clock())
    found = load(bench)
    assert (found.holders, found.exited) == ([], {one.id: sweep.id})
    bench.tick()
    assert (bench.state(one.id), bench.state(two.id)) == (("completed", 1), ("starting", 1))
    assert load(bench).exited == {}


def test_clocks_begin_with_a_tick_and_not_with_a_look(bench):
    run, _ = bench.running()
    bench.store.requests.set_desired(run, Desired.PAUSE, actor="user")

    def asked_since() -> float:
        [attempt] = load(bench).attempts
        return attempt.since_request_s

    assert asked_since() == 0.0
    bench.elapsed += 10.0
    assert asked_since() == 0.0
    bench.tick()
    bench.elapsed += 5.0
    assert asked_since() == 5.0


def test_exit_whose_events_were_not_read_by_an_earlier_server_is_decided_on(bench):
    run, attempt = bench.running()
    bench.listed.pop(attempt)
    done = line("finished", step=1000, outcome="completed")
    size = bench.store.streams.sizes(attempt)["events.jsonl"]
    bench.store.streams.append(attempt, "events.jsonl", size, done)
    bench.store.attempts.update(attempt, exit={"code": 1}, exited_at=bench.store.clock())
    bench.store.attempts.close(attempt)
    bench.restart()
    bench.tick()
    assert bench.state(run) == ("completed", 1)
