"""Progress of sweeps: trials are created, pruned and retried by the store and its controller."""

from __future__ import annotations

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.specs import SweepSpec, expand, load_spec
from lehr.specs.course import trunk_of
from lehr_testing.groups import Groups
from lehr_testing.stores import begin, ingest, line, metrics, run_spec

LR = {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform_values"}


@pytest.fixture
def controller(store):
    controller = Groups(store)
    store.subscribe(controller.changed)
    return controller


def made(store, **fields):
    spec = load_spec(
        {
            "kind": "sweep",
            "name": "s",
            "parameters": {"train.seed": {"values": [0, 1, 2, 3, 4]}},
            "metric": {"name": "train/loss"},
            "run": {"train": run_spec().model_dump(mode="json")["train"]},
            **fields,
        }
    )
    assert isinstance(spec, SweepSpec)
    return store.sweeps.create(spec, expand(spec))


def start(store, run_id):
    attempt = begin(store, run_id)
    ingest(store, attempt.id, line("started", attempt=attempt.number, device="cpu", total_steps=10))
    store.event_applier.apply(attempt.id)
    assert store.runs.get(run_id).state == "running"
    return attempt


def end(store, run_id, new, cause="exception", message="boom"):
    run = store.runs.get(run_id)
    assert store.transitions.apply(
        run_id,
        old=RunState(run.state),
        new=new,
        attempt=run.attempt,
        cause=cause,
        message=message,
        actor="dispatcher",
    )


def runs(store, sweep):
    return [store.runs.get(trial.run_id) for trial in store.sweeps.trials(sweep.id)]


def states(store, sweep):
    return [run.state for run in runs(store, sweep)]


def fail_three(store, sweep):
    for run in runs(store, sweep)[:3]:
        start(store, run.id)
        end(store, run.id, RunState.FAILED)


def test_sweep_is_stopped_if_its_trials_fail_with_the_same_cause(store, controller):
    sweep = made(store)
    fail_three(store, sweep)
    controller.tick()
    assert states(store, sweep) == ["failed"] * 3 + ["cancelled"] * 2
    why = "all 3 trials that ended failed in the same way: exception: boom"
    assert store.sweeps.get(sweep.id).stopped == why
    assert runs(store, sweep)[4].reason == f"its sweep was stopped: {why}"
    controller.tick()
    assert store.sweeps.get(sweep.id).stopped == why


def test_retry_runs_exactly_the_trials_that_failed_or_never_ran(store, controller):
    sweep = made(store)
    fail_three(store, sweep)
    controller.tick()
    before = [run.id for run in runs(store, sweep)]
    again = store.sweep_progress.retry_trials(sweep.id, actor="user")
    after = runs(store, sweep)
    assert [run.state for run in after] == ["queued"] * 5
    assert [run.id for run in after[:3]] == before[:3]
    assert [run.attempt for run in after] == [1, 1, 1, 0, 0]
    assert not {run.id for run in after[3:]} & set(before)
    assert again == [run.id for run in after]
    assert store.sweeps.get(sweep.id).stopped is None
    controller.tick()
    assert states(store, sweep) == ["queued"] * 5


def test_tpe_creates_all_its_trials_also_after_a_restart(store, controller):
    sweep = made(store, method="tpe", parameters={"train.optimizer.lr": LR}, trials=12)
    assert len(store.sweeps.trials(sweep.id)) == 10

    def finish_all():
        for run in runs(store, sweep):
            if run.state == "queued":
                attempt = start(store, run.id)
                ingest(
                    store, attempt.id, metrics(10, train_loss=run.spec["train"]["optimizer"]["lr"])
                )
                end(store, run.id, RunState.COMPLETED, "completed", None)

    controller.tick()
    assert len(store.sweeps.trials(sweep.id)) == 10
    finish_all()
    controller.tick()
    assert len(store.sweeps.trials(sweep.id)) == 11
    controller.tick()
    assert len(store.sweeps.trials(sweep.id)) == 11
    finish_all()
    another = Groups(store)  # A restarted server: it received no notice of a change.
    another.tick()
    assert len(store.sweeps.trials(sweep.id)) == 11
    another.enqueue_all()
    another.tick()
    assert len(store.sweeps.trials(sweep.id)) == 12
    finish_all()
    controller.tick()
    names = [run.name for run in runs(store, sweep)]
    assert names == [f"s-{n}" for n in range(1, 13)]
    assert runs(store, sweep)[11].submitted_by == "user"


def test_pruner_prunes_only_the_running_attempt(store, controller):
    sweep = made(store, pruning={"name": "asha", "min_steps": 2, "reduction": 2})
    *good, bad = runs(store, sweep)
    for at, run in enumerate(good):
        attempt = start(store, run.id)
        ingest(store, attempt.id, metrics(2, train_loss=1.0 + at / 10), metrics(4, train_loss=1.0))
        end(store, run.id, RunState.COMPLETED, "completed", None)
    controller.tick()
    attempt = start(store, bad.id)
    controller.tick()
    assert store.runs.get(bad.id).desired == "run"
    ingest(store, attempt.id, metrics(2, train_loss=9.0))
    controller.tick()
    assert store.runs.get(bad.id).desired == "prune"
    request = store.requests.of_run(bad.id)[-1]
    assert (request.actor, request.attempt) == ("sweep", 1)
    assert request.message == (
        "train/loss, asha: 9 at step 2 is not among the best 1/2 at this rung"
    )
    assert not store.requests.prune(bad.id, 1, "twice")
    assert len(store.requests.of_run(bad.id)) == 1


@pytest.mark.parametrize(("metric", "stops"), [("val/loss", True), ("train/loss", False)])
def test_a_search_over_trials_of_different_held_out_sets_stops(store, controller, metric, stops):
    space = {"train.optimizer.lr": LR}
    sweep = made(store, method="tpe", parameters=space, trials=12, metric={"name": metric})
    for run in runs(store, sweep):
        attempt = start(store, run.id)
        values, digest = {metric: 2.0}, f"{run.number % 2}" * 64
        record = line("evaluation", step=10, tokens=1, values=values, validation_digest=digest)
        ingest(store, attempt.id, record)
        end(store, run.id, RunState.COMPLETED, "completed", None)
    controller.tick()
    why = store.sweeps.get(sweep.id).stopped
    assert ("different held-out sets" in (why or "")) == stops
    assert len(store.sweeps.trials(sweep.id)) == (10 if stops else 11)


# ------------------------------------------------------------------------------------ a trunk

ANNEAL = "train.stages.1.optimizer.lr"


def with_trunk(store, **fields):
    train = run_spec().model_dump(mode="json", exclude_unset=True)["train"] | {"steps": None}
    train["stages"] = [{"tokens": 2560}, {"tokens": 2560, "schedule": "constant"}]
    fields = {"parameters": {ANNEAL: {"values": [1e-4, 1e-3]}}, "run": {"train": train}, **fields}
    spec = load_spec({"kind": "sweep", "name": "s", **fields})
    assert isinstance(spec, SweepSpec)
    sweep = store.sweeps.create(spec, expand(spec), trunk=trunk_of(spec))
    trunk = store.sweeps.trunk(sweep.id)
    assert (trunk.name, trunk.stored.total_steps, trunk.sweep_id) == ("s-trunk", 10, sweep.id)
    assert {run.forked_from for run in runs(store, sweep)} == {trunk.id}
    return sweep, trunk.id


def complete(store, trunk, save=True):
    attempt = start(store, trunk)
    path = f"attempt-{attempt.number}/checkpoints/step-00000010"
    if save:
        saved = line("checkpoint", step=10, path=path, size_bytes=1, digest="d", reason="last")
        ingest(store, attempt.id, saved)
        store.event_applier.apply(attempt.id)
    end(store, trunk, RunState.COMPLETED, "completed", None)
    return str(store.home / "runs" / trunk / path)


def bases(store, sweep):
    return [run.resume_from for run in runs(store, sweep)]


def test_trials_start_from_the_last_checkpoint_of_their_trunk(store, controller):
    sweep, trunk = with_trunk(store)
    controller.tick()
    assert bases(store, sweep) == [None, None]
    base = complete(store, trunk)
    # A restarted server finds it, too.
    another = Groups(store)
    another.enqueue_all()
    another.tick()
    assert bases(store, sweep) == [base, base]
    assert states(store, sweep) == ["queued"] * 2
    assert [point.step for point in store.checkpoints.base_of(runs(store, sweep)[0])] == [10]
    cancelled = runs(store, sweep)[0].id
    store.sweep_progress.stop(sweep.id, "enough", actor="user")
    store.sweep_progress.retry_trials(sweep.id, actor="user")
    assert runs(store, sweep)[0].id != cancelled
    controller.tick()
    assert bases(store, sweep) == [base, base], "a new run of a trial starts there, too"


def test_trials_end_with_their_trunk_and_wait_again_when_it_is_retried(store, controller):
    sweep, trunk = with_trunk(store)
    with pytest.raises(Conflict, match="has no failed trial"):
        store.sweep_progress.retry_trials(sweep.id, actor="user")
    for retry in ("at once", "the trunk", "the sweep"):
        start(store, trunk)
        end(store, trunk, RunState.FAILED)
        if retry == "at once":
            store.sweep_progress.retry_trials(sweep.id, actor="user")
            continue
        controller.tick()
        assert states(store, sweep) == ["failed"] * 2
        reasons = {(run.cause, run.reason) for run in runs(store, sweep)}
        assert reasons == {("trunk", "it starts where s-trunk ends, which is failed: boom")}
        assert store.sweeps.get(sweep.id).stopped is None
        if retry == "the sweep":
            store.sweep_progress.retry_trials(sweep.id, actor="user")
            assert store.runs.get(trunk).state == "queued"
        else:
            end(store, trunk, RunState.QUEUED, "retry")
            controller.tick()
        assert states(store, sweep) == ["queued"] * 2
    complete(store, trunk, save=False)
    controller.tick()
    assert {run.reason for run in runs(store, sweep)} == {
        "it starts where s-trunk ends, which is completed: its last checkpoint was removed"
    }


def test_trials_are_cancelled_with_their_trunk(store, controller):
    sweep, trunk = with_trunk(store, max_concurrent=1)
    end(store, trunk, RunState.CANCELLED, "cancel", "cancelled by the user")
    controller.tick()
    assert states(store, sweep) == ["cancelled"] * 2
    why = "it starts where s-trunk ends, which is cancelled: cancelled by the user"
    assert runs(store, sweep)[1].reason == why


def test_a_search_chooses_further_points_once_its_trunk_has_completed(store, controller):
    sweep, trunk = with_trunk(store, method="tpe", parameters={ANNEAL: LR}, trials=11)
    assert states(store, sweep) == ["queued"] * 10
    start(store, trunk)
    end(store, trunk, RunState.FAILED)
    controller.tick()
    assert states(store, sweep) == ["failed"] * 10
    assert store.sweeps.get(sweep.id).stopped is None
    end(store, trunk, RunState.QUEUED, "retry")
    controller.tick()
    base = complete(store, trunk)
    controller.tick()
    for n, run in enumerate(runs(store, sweep)):
        attempt = start(store, run.id)
        ingest(store, attempt.id, metrics(20, val_loss=float(n)))
        end(store, run.id, RunState.COMPLETED, "completed", None)
    controller.tick()
    assert bases(store, sweep) == [base] * 11
