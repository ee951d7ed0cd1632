"""A rollout in the store with its controller: each seeded bug fails at its own stage and gate."""

from __future__ import annotations

import math

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing.rollouts import ALL_RUNS, Bug, create, spec, states, submitted


def verdicts(store, rollout):
    names = {row.number: row.name for row in store.rollouts.stages(rollout.id)}
    return {(names[one.stage], one.gate): one for one in store.rollouts.verdicts(rollout.id)}


def test_sound_run_passes_all_four_stages(store, world):
    rollout = create(store, spec())
    world.play()
    found = store.rollouts.get(rollout.id)
    assert (found.outcome, found.reason) == ("passed", None)
    assert set(states(store, rollout).values()) == {"passed"}
    assert submitted(store, rollout) == ALL_RUNS
    gpus = [run.spec["resources"]["gpus"] for _, run in store.rollouts.runs(rollout.id)]
    assert gpus == [0, 0, 1, 1, 1, 2, 2, 2, 4]
    gate_verdicts = {key: one.verdict for key, one in verdicts(store, rollout).items()}
    assert gate_verdicts.pop(("cpu", "memory")) == "not_judged"
    assert gate_verdicts.pop(("cpu", "mfu")) == "not_judged"
    assert set(gate_verdicts.values()) == {"passed"}
    assert len(gate_verdicts) == 3 * 6 + 5 - 2
    last = next(run for link, run in store.rollouts.runs(rollout.id) if link.stage == 4)
    assert last.spec["train"]["steps"] == 200


BUGS = {
    # The bug, the stage and gate where it shows first, and the text of the verdict.
    "a learning rate far too high": (
        {"r-cpu": Bug(loss=lambda step, loss: loss + 0.4 * max(0, step - 3))},
        ("cpu", "falling_loss"),
        "over the first",
    ),
    "a loss that becomes NaN": (
        {"r-cpu": Bug(loss=lambda step, loss: math.nan if step > 20 else loss)},
        ("cpu", "falling_loss"),
        "the loss became nan at step 21",
    ),
    "a loss summed where it should be averaged": (
        {"r-cpu": Bug(loss=lambda step, loss: 8 * loss)},
        ("cpu", "first_loss"),
        "nats at step 1",
    ),
    "a resume that forgets": (
        {"r-cpu-resumed": Bug(weights="other")},
        ("cpu", "exact_resume"),
        "2 of 2 files differ: model.safetensors, optimizer.safetensors",
    ),
    "a resume that forgets on a GPU only": (
        {"r-one-gpu-resumed": Bug(weights="other")},
        ("one_gpu", "exact_resume"),
        "2 of 2 files differ",
    ),
    "a resume that crashes": (
        {"r-one-gpu-resumed": Bug(fails_with="exception")},
        ("one_gpu", "exact_resume"),
        "r-one-gpu-resumed failed",
    ),
    "memory far over the plan": (
        {"r-one-gpu": Bug(peak_gb=30.0)},
        ("one_gpu", "memory"),
        "peak 30.0 GB",
    ),
    "memory over the card's": ({"r-one-gpu": Bug(peak_gb=79.0)}, ("one_gpu", "memory"), "79.0 GB"),
    "out of memory": (
        {"r-one-gpu": Bug(fails_with="out_of_memory")},
        ("one_gpu", "memory"),
        "the GPU ran out of memory",
    ),
    "a GPU that idles": (
        {"r-one-gpu": Bug(mfu=0.04)},
        ("one_gpu", "mfu"),
        "4.0 %, the median of steps",
    ),
    "a loss that is wrong between two ranks only": (
        {"r-two-gpus": Bug(loss=lambda step, loss: 2 * loss)},
        ("two_gpus", "first_loss"),
        "nats at step 1",
    ),
    "a bug that shows in the whole run only": (
        {"r-all": Bug(loss=lambda step, loss: 4 * loss)},
        ("all", "first_loss"),
        "nats at step 1",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_stopped_at_its_own_stage_and_gate(store, world, name):
    bugs, (stage, gate), evidence = BUGS[name]
    rollout = create(store, spec())
    trained = world.play(bugs)
    found = store.rollouts.get(rollout.id)
    assert found.outcome == "failed"
    failed = {key for key, one in verdicts(store, rollout).items() if one.verdict == "failed"}
    assert (stage, gate) in failed
    assert {at for at, _ in failed} == {stage}
    assert evidence in verdicts(store, rollout)[stage, gate].seen
    assert found.reason is not None
    outcomes = list(states(store, rollout).values())
    number = next(r.number for r in store.rollouts.stages(rollout.id) if r.name == stage)
    assert outcomes == ["passed"] * (number - 1) + ["failed"] + [None] * (4 - number)
    # Nothing of the later stages was started, nor anything after the gate.
    assert [name for _, _, name in submitted(store, rollout)] == trained
    assert {at for at, _, _ in submitted(store, rollout)} == set(range(1, number + 1))
    if gate != "exact_resume":
        assert not any(
            at == number and role != "train" for at, role, _ in submitted(store, rollout)
        )


def test_ended_run_is_judged_only_after_all_data_arrived(store, world):
    rollout = create(store, spec())
    [run] = world.waiting()
    attempt = world.train(run, upto=60)
    store.transitions.apply(
        run.id,
        old=RunState.RUNNING,
        new=RunState.COMPLETED,
        attempt=1,
        cause="completed",
        actor="test",
    )
    world.controller.tick()
    assert "falling_loss" not in {gate for _, gate in verdicts(store, rollout)}
    store.attempts.close(attempt)
    world.controller.tick()
    assert "falling_loss" in {gate for _, gate in verdicts(store, rollout)}


def test_cancelled_rollout_cancels_its_run_and_starts_no_other(store, world):
    rollout = create(store, spec())
    [run] = world.waiting()
    world.train(run, upto=5)
    store.rollout_progress.end(rollout.id, "cancelled", "cancelled", actor="user")
    assert store.runs.get(run.id).desired == "cancel"
    assert (store.requests.of_run(run.id)[-1].actor, store.requests.of_run(run.id)[-1].message) == (
        "user",
        "rollout cancelled",
    )
    world.end(run.id)
    assert world.waiting() == []
    assert states(store, rollout) == {
        "cpu": "cancelled",
        "one_gpu": None,
        "two_gpus": None,
        "all": None,
    }


def test_failed_run_stops_the_rollout_with_its_reason(store, world):
    rollout = create(store, spec())
    world.play({"r-two-gpus": Bug(fails_with="exception")})
    found = store.rollouts.get(rollout.id)
    assert (found.outcome, found.reason) == (
        "failed",
        "stage two_gpus, its run failed: r-two-gpus: exception",
    )
    assert states(store, rollout) == {
        "cpu": "passed",
        "one_gpu": "passed",
        "two_gpus": "failed",
        "all": None,
    }
