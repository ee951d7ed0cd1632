"""A rollout whose controller is restarted or killed: each run is submitted once, and in order."""

from __future__ import annotations

import pytest

from lehr.store import Store
from lehr.store.records.rollouts import RolloutProgress
from lehr_testing.groups import Groups
from lehr_testing.rollouts import ALL_RUNS, Bug, World, create, spec, submitted
from lehr_testing.stores import crashed_copy, fresh_store


@pytest.mark.parametrize(
    "crash_before",
    # Two of nine moments at each change; the others repeat them with other runs.
    [at if at in {0, 5} else pytest.param(at, marks=pytest.mark.nightly) for at in range(9)],
)
def test_restarted_controller_submits_each_run_once(store, world, crash_before):
    rollout = create(store, spec())
    for number in range(9):
        if number == crash_before:
            world.restart()
            world.controller.enqueue_all()
            world.controller.tick()
        [run] = world.waiting()
        world.train(run)
        Groups(store, world.runs_dir).tick()
    assert world.play() == []
    assert submitted(store, rollout) == ALL_RUNS
    assert store.rollouts.get(rollout.id).outcome == "passed"


class Killed(BaseException):
    """The process ends here."""


ACTS = ["submit_run", "record_verdicts", "pass_stage", "end"]


@pytest.mark.parametrize(
    ("when", "act"),
    [
        # Each write is met once at each change, and on its other side at night.
        pytest.param(when, act, marks=() if at % 2 == side else pytest.mark.nightly)
        for at, act in enumerate(ACTS)
        for side, when in enumerate(["before", "after"])
    ],
)
def test_controller_killed_at_any_write_continues_from_the_record(tmp_path, monkeypatch, when, act):
    """The process dies once around each write; the next one continues."""
    home = tmp_path / "home"
    bugs = {"r-all": Bug(mfu=0.0)} if act == "end" else {}
    store = fresh_store(home)
    rollout = create(store, spec())
    real = getattr(RolloutProgress, act)
    due = True

    def dies(self, *args, **options):
        nonlocal due
        due = not due
        if due:
            return real(self, *args, **options)
        if when == "after":
            real(self, *args, **options)
        raise Killed

    monkeypatch.setattr(RolloutProgress, act, dies)
    number = kills = 0
    while True:
        world = World(store)
        world.controller.enqueue_all()
        try:
            world.play(bugs)
        except Killed:
            kills += 1
            number += 1
            copy = crashed_copy(store, tmp_path / f"copy-{number}")
            store.close()
            store = Store.open(copy)
            continue
        break
    assert kills
    assert [name for _, _, name in submitted(store, rollout)] == [name for *_, name in ALL_RUNS]
    assert store.rollouts.get(rollout.id).outcome == ("failed" if bugs else "passed")
    gates = [(one.stage, one.gate) for one in store.rollouts.verdicts(rollout.id)]
    assert len(gates) == len(set(gates)) == 3 * 6 + 5
    store.close()
