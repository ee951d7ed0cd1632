"""The held-out set of a run's last evaluation, from the records of its attempts."""

from __future__ import annotations

from lehr_testing.stores import ingest, line, metrics, new_attempt, next_attempt


def evaluated(step, digest=None):
    values = {"val/loss": 2.0}
    return line("evaluation", step=step, tokens=step, values=values, validation_digest=digest)


def test_run_without_records_has_no_held_out_set(store):
    attempt = new_attempt(store)
    assert store.events.held_out([attempt.run_id, "nobody"]) == {
        attempt.run_id: None,
        "nobody": None,
    }
    ingest(store, attempt.id, line("started", attempt=1), metrics(1, train_loss=1.0), evaluated(1))
    assert store.events.held_out([attempt.run_id]) == {attempt.run_id: None}


def test_held_out_set_is_known_from_the_started_record(store):
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started", attempt=1, validation_digest="a1"))
    assert store.events.held_out([attempt.run_id]) == {attempt.run_id: "a1"}


def test_held_out_set_is_that_of_the_newest_record(store):
    first = new_attempt(store)
    ingest(store, first.id, line("started", attempt=1, validation_digest="a1"), evaluated(5, "a1"))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("started", attempt=2, validation_digest="b2"), evaluated(5, "b2"))
    ingest(store, second.id, line("checkpoint", step=5, path="p", size_bytes=1, digest="d"))
    # Late bytes of the older attempt.
    ingest(store, first.id, evaluated(6, "a1"))
    assert store.events.held_out([first.run_id]) == {first.run_id: "b2"}


def test_items_of_a_task_are_those_of_its_own_newest_evaluation(store):
    first = new_attempt(store)
    started = line("started", attempt=1, validation_digest="a1")
    values = {"task/own/accuracy": 0.5}
    for step, tasks in ((5, {"own": "c1", "mean": "m1"}), (6, {"own": "c2"}), (7, {"other": "x"})):
        evaluation = line("evaluation", step=step, tokens=step, values=values, tasks=tasks)
        ingest(store, first.id, started, evaluation)
    known = {
        metric: store.events.held_out([first.run_id], metric)[first.run_id]
        for metric in ("val/loss", "task/own/accuracy", "task/average/own/loss", "task/mean")
    }
    assert [*known.values()] == ["a1", "c2", "c2", "m1"]
    assert store.events.held_out([first.run_id], "task/new/loss") == {first.run_id: None}
