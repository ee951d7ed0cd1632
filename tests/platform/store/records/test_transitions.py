"""Transitions of runs: only legal ones, each fenced, each with its row."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlmodel import col

from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict, InternalError, StoreUnavailable
from lehr.store import Store
from lehr.store.records.requests import cancel_runs
from lehr.store.tables import RunRow
from lehr.store.upkeep.integrity import check
from lehr_testing.lifecycle import MOVES, is_move
from lehr_testing.properties import examples
from lehr_testing.stores import begin, fresh_store, memory_folder, new_attempt, run_spec

STATES = st.sampled_from(list(RunState))


def test_only_one_of_many_dispatchers_starts_a_run(store: Store) -> None:
    run = store.runs.create(run_spec())
    barrier = threading.Barrier(8)
    won: list[object] = []

    def race() -> None:
        barrier.wait()
        won.append(
            store.transitions.begin_attempt(run.id, placement=[], resume_from=None, token_sha256="")
        )

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([attempt for attempt in won if attempt]) == 1
    assert len(store.attempts.of_run(run.id)) == 1


@pytest.mark.parametrize("of_many", [False, True])
def test_no_run_ends_before_it_starts_when_the_clock_is_set_back(
    tmp_path: Path, of_many: bool
) -> None:
    now = [7200.0]
    with fresh_store(tmp_path / "home", clock=lambda: now[0]) as store:
        run = store.runs.create(run_spec())
        now[0] = 3600.0
        begin(store, run.id)
        store.attempts.update(f"{run.id}-1", dispatched_at=7210.0)
        assert store.attempts.update(f"{run.id}-1", exited_at=3600.0).exited_at == 7210.0
        step = {"attempt": 1, "cause": "x", "actor": "test"}
        transition = store.transitions.apply
        assert transition(run.id, old=RunState.STARTING, new=RunState.RUNNING, **step)
        assert transition(run.id, old=RunState.RUNNING, new=RunState.QUEUED, **step)
        now[0] = 3700.0
        if of_many:
            with store.db.write() as session:
                cancel_runs(
                    session,
                    store.db,
                    col(RunRow.id) == run.id,
                    message="x",
                    actor="test",
                    at=now[0],
                )
        else:
            assert transition(run.id, old=RunState.QUEUED, new=RunState.CANCELLED, **step)
        row = store.runs.get(run.id)
        assert (row.started_at, row.ended_at) == (7200.0, 7200.0)
        assert {row.at for row in store.transitions.of_run(run.id)} == {7200.0}


def test_heartbeats_of_many_attempts_are_recorded_together(store: Store) -> None:
    first, second = new_attempt(store), new_attempt(store)
    store.attempts.record_heartbeats(
        {first.id: (10.0, 7), second.id: (11.0, None), "gone-1": (1.0, 1)}
    )
    row = store.attempts.get(first.id)
    assert (row.last_heartbeat_at, row.last_step, row.last_step_at) == (10.0, 7, 10.0)
    other = store.attempts.get(second.id)
    assert (other.last_heartbeat_at, other.last_step, other.last_step_at) == (11.0, None, None)
    # A heartbeat may know less than the events, which are applied on their own.
    store.attempts.record_heartbeats({first.id: (20.0, 5)})
    row = store.attempts.get(first.id)
    assert (row.last_heartbeat_at, row.last_step, row.last_step_at) == (20.0, 7, 10.0)


class Histories(RuleBasedStateMachine):
    """Random actors with right and wrong assumptions about a run's state, compared with a simple model."""

    store: Store

    @initialize()
    def submit(self) -> None:
        self.run_id = self.store.runs.create(run_spec()).id
        self.state, self.attempt, self.desired = RunState.QUEUED, 0, "run"
        self.history = [(None, "queued", 0)]

    @rule(old=STATES, new=STATES, behind=st.integers(-1, 1))
    def move(self, old: RunState, new: RunState, behind: int) -> None:
        attempt = self.attempt + behind
        if not is_move(old.value, new.value) or new in {RunState.STARTING, RunState.EXTERNAL}:
            with pytest.raises(InternalError):
                self.store.transitions.apply(
                    self.run_id, old=old, new=new, attempt=attempt, cause="x", actor="test"
                )
            return
        moved = self.store.transitions.apply(
            self.run_id, old=old, new=new, attempt=attempt, cause="x", actor="test"
        )
        assert moved == (old is self.state and behind == 0)
        if moved:
            self.history.append((old.value, new.value, attempt))
            self.state = new

    @rule(data=st.data())
    def move_on(self, data: st.DataObject) -> None:
        """A legal transition, so that histories get long."""
        choices = [
            RunState(new) for new in sorted(MOVES[self.state.value] - {"starting", "external"})
        ]
        if choices:
            self.move(self.state, data.draw(st.sampled_from(choices)), 0)

    @rule()
    def start(self) -> None:
        attempt = self.store.transitions.begin_attempt(
            self.run_id, placement=[], resume_from=None, token_sha256=""
        )
        assert (attempt is not None) == (self.state is RunState.QUEUED and self.desired == "run")
        if attempt is not None:
            self.attempt += 1
            assert attempt.number == self.attempt
            self.history.append(("queued", "starting", self.attempt))
            self.state = RunState.STARTING

    @rule(desired=st.sampled_from([Desired.RUN, Desired.PAUSE]))
    def request(self, desired: Desired) -> None:
        if self.state.ended:
            with pytest.raises(Conflict):
                self.store.requests.set_desired(self.run_id, desired, actor="test")
            return
        self.store.requests.set_desired(self.run_id, desired, actor="test")
        self.desired = desired.value

    @invariant()
    def record_is_the_history(self) -> None:
        if not hasattr(self, "run_id"):
            return
        run = self.store.runs.get(self.run_id)
        assert (run.state, run.attempt, run.desired) == (self.state, self.attempt, self.desired)
        assert [
            (row.old, row.new, row.attempt) for row in self.store.transitions.of_run(self.run_id)
        ] == self.history
        assert [attempt.number for attempt in self.store.attempts.of_run(self.run_id)] == list(
            range(1, self.attempt + 1)
        )


def test_random_histories_are_legal_fenced_and_recorded() -> None:
    with memory_folder() as folder, fresh_store(folder / "home") as store:
        Histories.store = store
        run_state_machine_as_test(
            Histories,
            settings=settings(
                max_examples=examples(25),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert check(store.home) == []


def test_writer_that_times_out_fails_and_records_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("lehr.store.database.TURN_TIMEOUT_S", 0.05)
    with Store.open(tmp_path) as store:
        run = store.runs.create(run_spec("one"))
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with store.transaction():
                inside.set()
                go_on.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        assert inside.wait(30)
        try:
            with pytest.raises(StoreUnavailable, match="earlier writes are still waiting"):
                store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
            assert store.runs.get(run.id).desired == "run"
        finally:
            go_on.set()
            holder.join()
        assert store.requests.set_desired(run.id, Desired.PAUSE, actor="ada").desired == "pause"
