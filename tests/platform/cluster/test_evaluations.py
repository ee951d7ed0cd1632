"""Evaluations beside a training, on a real store: submitted, ranked, preempted, reported, ended."""

from __future__ import annotations

import json

import pytest

from lehr.app.presenters import Presenter
from lehr.app.presenters.evaluations import evaluations
from lehr.control.lifecycle import Desired
from lehr.specs import expand, load_spec
from lehr.store.scores import report_scores
from lehr.store.streams.replica import SCORES
from lehr.store.upkeep.integrity import differences, received
from lehr_testing.dispatching import Bench
from lehr_testing.specs import run as run_spec

EVALUATION = {"name": "probe", "command": ["python", "eval.py", "{checkpoint}"]}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch, gpus=2)
    yield made
    made.store.close()


def record(bench: Bench, attempt: str, kind: str, **fields) -> None:
    line = json.dumps({"kind": kind, "time": 2.0, **fields}).encode() + b"\n"
    size = bench.store.streams.sizes(attempt)["events.jsonl"]
    bench.store.streams.append(attempt, "events.jsonl", size, line)


def save(bench: Bench, attempt: str, step: int) -> None:
    number = attempt.rpartition("-")[2]
    path = f"attempt-{number}/checkpoints/step-{step:08d}"
    of_file = {"path": path, "size_bytes": 1, "digest": "0" * 64, "reason": "interval"}
    record(bench, attempt, "metrics", step=step, tokens=step * 256, values={"val/loss": 1.0 / step})
    record(bench, attempt, "checkpoint", step=step, **of_file)
    bench.tick()


def parent(bench: Bench, **changes) -> tuple[str, str]:
    return bench.running("base", evaluations=[EVALUATION], **changes)


def begin(bench: Bench, run_id: str) -> str:
    """Let the evaluation, which has been placed, begin; return its attempt."""
    attempt = f"{run_id}-{bench.store.runs.get(run_id).attempt}"
    bench.heartbeat(attempt, step=None)
    started = {"kind": "started", "time": 3.0, "schema_version": 1, "attempt": 1}
    bench.store.streams.append(attempt, "events.jsonl", 0, json.dumps(started).encode() + b"\n")
    bench.tick()
    return attempt


def complete(bench: Bench, attempt: str, **values: float) -> None:
    if values:
        record(bench, attempt, "metrics", step=1, tokens=1, values=values)
    record(bench, attempt, "finished", step=1, outcome="completed")
    bench.exited(attempt)
    bench.tick()


def only(bench: Bench, run_id: str, number: int = 0) -> str:
    return bench.store.runs.evaluations(run_id)[number].id


def test_values_join_the_curves_of_the_run_at_the_step_of_the_checkpoint_once(bench):
    run, attempt = parent(bench)
    save(bench, attempt, 10)
    child = only(bench, run)
    assert bench.state(child) == ("starting", 1)
    [launch] = [
        f["launch"] for op, f in bench.asked if op == "start" and f["launch"]["run_id"] == child
    ]
    assert "lehr_log.evaluate" in launch["files"]["config.yaml"]
    assert bench.heartbeat(attempt, 11)["orders"]["keep"] == ["attempt-1/checkpoints/step-00000010"]
    save(bench, attempt, 20)  # Waits until the first one has ended.
    complete(bench, begin(bench, child), acc=0.5, loss=2.0, **{"train/loss": 2.0, "system/x": 1.0})
    assert bench.heartbeat(attempt, 21)["orders"]["keep"] == ["attempt-1/checkpoints/step-00000020"]
    complete(bench, begin(bench, only(bench, run, 1)), acc=0.75)

    stream = bench.store.streams.read(attempt, SCORES)
    report_scores(
        bench.store, child
    )  # A server that was killed before it recorded the end does so.
    assert bench.store.streams.read(attempt, SCORES) == stream
    read = bench.store.series.read(run, "probe/acc", exact=True)
    assert (read.step, read.y) == ([10, 20], [0.5, 0.75])
    assert bench.store.series.read(run, "val/loss", exact=True).step == [10, 20]
    names = {one.name for one in bench.store.series.metrics(run)}
    assert names == {"val/loss", "probe/acc", "probe/loss"}
    tokens = bench.store.series.read(run, "probe/acc", x_axis="tokens", exact=True)
    assert tokens.x == [2560.0, 5120.0]

    listed = [one.id for one in bench.store.runs.page().items]
    assert listed == [run]
    assert child in {one.id for one in bench.store.runs.page(search="base-probe").items}


def test_tasks_beside_are_recorded_as_those_of_the_training_with_their_digest(bench):
    task = {"name": "own", "path": "stdlib_modules", "where": "beside"}
    own = run_spec(bench.corpus, "base", steps=10)
    spec = load_spec(
        {
            "kind": "sweep",
            "name": "base",
            "metric": {"name": "task/own/accuracy"},
            "parameters": {"train.seed": {"values": [1]}},
            "run": {"train": own["train"] | {"evals": [task]}},
        }
    )
    sweep = bench.store.sweeps.create(spec, expand(spec))
    [trial] = bench.store.sweeps.outlines(sweep.id)
    run, attempt = bench.begun(trial.run_id)
    save(bench, attempt, 10)
    complete(bench, attempt)
    shown = Presenter(bench.store).sweeps
    assert (shown.outline(sweep).state, shown.outline(sweep).best_run_id) == ("running", None)
    child = only(bench, run)
    assert "--beside" in bench.store.runs.get(child).spec["trainer"]["argv"]
    evaluating = begin(bench, child)
    assert shown.outline(sweep).counts == {"running": 1}
    record(bench, evaluating, "evaluation", step=0, tokens=0, values={}, tasks={"own": "d" * 64})
    complete(bench, evaluating, **{"task/own/accuracy": 0.5})
    assert (shown.outline(sweep).state, shown.outline(sweep).best_run_id) == ("finished", run)
    read = bench.store.series.read(run, "task/own/accuracy", exact=True)
    assert (read.step, read.y) == ([10], [0.5])
    assert bench.store.events.held_out([run], "task/own/accuracy") == {run: "d" * 64}
    same_after_a_rebuild(bench, run, "task/own/accuracy")
    assert bench.store.events.held_out([run], "task/own/accuracy") == {run: "d" * 64}


def test_index_that_is_made_again_has_the_same_scores(bench):
    run, attempt = parent(bench)
    save(bench, attempt, 10)
    complete(bench, begin(bench, only(bench, run)), acc=0.5)
    same_after_a_rebuild(bench, run, "probe/acc")


def same_after_a_rebuild(bench: Bench, run: str, metric: str) -> None:
    streams = received(bench.home / "streams.db")
    with bench.store.index.read() as connection:
        assert not list(differences(connection, bench.store.streams.replica, streams))
    before = bench.store.series.curves(run)[0][metric].values.tolist()
    bench.store.close()
    (bench.home / "streams.db").unlink()
    bench.restart()
    assert bench.store.series.curves(run)[0][metric].values.tolist() == before == [0.5]
    [one] = bench.store.runs.evaluations(run)
    assert one.state == "completed"


def test_training_takes_the_gpu_of_an_evaluation_that_starts_or_runs(bench):
    run, attempt = parent(bench)
    save(bench, attempt, 10)
    child = only(bench, run)
    assert bench.state(child) == ("starting", 1)
    low = bench.waiting("low", priority=-100)
    bench.tick()
    assert bench.state(child) == ("stopping", 1)
    bench.exited(f"{child}-1", code=None, signal="SIGTERM", reason="stopped")
    bench.tick()
    assert bench.state(low)[0] == "starting"
    assert bench.state(child)[0] == "queued"
    # A training that waits keeps its place before evaluations, whatever was submitted first.
    later = bench.waiting("later", priority=-100)
    bench.tick()
    assert bench.dispatcher.queue_order() == (later, child)


def test_evaluation_takes_nothing_of_the_share_or_quota_of_its_project(bench):
    bench.store.quotas.put("default", 2, actor="user")
    run, attempt = parent(bench)
    save(bench, attempt, 10)
    begin(bench, only(bench, run))
    training = bench.waiting("next")
    bench.tick()
    assert "quota" not in (bench.store.runs.get(training).pending_reason or "")
    assert bench.state(only(bench, run)) == ("stopping", 1)


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_evaluations_end_with_their_run_and_go_on_after_its_end(bench, how):
    run, attempt = parent(bench)
    save(bench, attempt, 10)
    child = only(bench, run)
    begin(bench, child)
    if how == "cancel":
        bench.store.requests.set_desired(run, Desired.CANCEL, actor="user")
        bench.tick()
        bench.exited(attempt)
        bench.tick()
    else:
        complete(bench, attempt)
        bench.tick()
        assert bench.state(run)[0] == "completed"
        assert bench.state(child) == ("running", 1)
        bench.restart()
        bench.news(hello=True)
        bench.tick()
        assert bench.state(child) == ("running", 1)
        bench.store.runs.mark_deleted(run)
    bench.tick()
    assert bench.store.runs.get(child).desired == "cancel"
    assert len(bench.store.runs.evaluations(run)) == 1


def test_failed_evaluation_is_a_warning_of_the_run_and_so_are_missed_checkpoints(bench):
    run, attempt = parent(bench)
    for step in (10, 20, 30):
        save(bench, attempt, step)
    path = "attempt-1/checkpoints/step-00000020"
    record(bench, attempt, "checkpoint_removed", step=20, path=path)
    child = begin(bench, only(bench, run))
    record(bench, child, "finished", step=1, outcome="failed", cause="program_failed", message="no")
    bench.exited(child, code=1)
    bench.tick()
    assert bench.state(run)[0] == "running"
    views, warnings = evaluations(bench.store, bench.store.runs.get(run))
    assert [(one.name, one.step, one.state) for one in views] == [
        ("probe", 10, "failed"),
        ("probe", 30, "starting"),
    ]
    assert warnings == ["evaluation probe: 1 checkpoints were removed before it."]
    child = begin(bench, views[1].run_id)
    record(bench, child, "finished", step=1, outcome="failed", cause="program_failed", message="no")
    bench.exited(child, code=1)
    bench.tick()
    assert evaluations(bench.store, bench.store.runs.get(run))[1][0] == (
        "evaluation probe failed at step 30: no."
    )
