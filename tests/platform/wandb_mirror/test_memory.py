"""What the mirror keeps of a run is dropped when the run has ended and is mirrored."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lehr.control.lifecycle import RunState
from lehr.presenters import Presenter
from lehr.specs.tracking import WandbTracking
from lehr.wandb_mirror.controller import MirrorController
from lehr.wandb_mirror.state_files import AttemptFeed, MirrorRequest, Notes, RunFeed
from lehr.wandb_mirror.worker import MirrorWorker
from lehr_testing.api import end
from lehr_testing.stores import begin, fresh_store, ingest, line, metrics, run_spec


def feed(run_id: str, state: str = "completed") -> RunFeed:
    attempts = [AttemptFeed(number=1, size=10, open=False)]
    return RunFeed(run_id=run_id, name="a", project="p", state=state, config={}, attempts=attempts)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker whose sessions end when they may."""
    mirrored: list[RunFeed] = []
    may_end = threading.Event()

    class Session:
        def __init__(self, home, run_id, newest, stop) -> None:
            self._newest = newest

        def keep(self) -> None:
            mirrored.append(self._newest())
            assert may_end.wait(20)

    monkeypatch.setitem(
        sys.modules, "lehr.wandb_mirror.session", SimpleNamespace(MirrorSession=Session)
    )
    made = MirrorWorker(tmp_path)

    def turn() -> None:
        made._start_due()
        for thread in made._threads.values():
            thread.join(20 if may_end.is_set() else 0.0)

    yield made, mirrored, may_end, turn
    may_end.set()


def test_feeds_of_mirrored_runs_are_dropped(worker) -> None:
    made, mirrored, may_end, turn = worker
    may_end.set()
    for number in range(20):
        made._feeds[f"r{number}"] = feed(f"r{number}")
        turn()
        turn()
    assert len(mirrored) == 20
    assert (made._feeds, made._done, made._not_before, made._failures) == ({}, {}, {}, {})


def test_steps_of_a_run_without_a_mirror_are_not_looked_at(tmp_path: Path) -> None:
    wandb = WandbTracking(mode="offline")
    with fresh_store(tmp_path / "home") as store:
        controller = MirrorController(store, Presenter(store), store.home)
        store.subscribe(controller._on_change)
        plain = store.runs.create(run_spec())
        mirrored = store.runs.create(run_spec(tracking={"wandb": wandb.model_dump()}))
        for run in (plain, mirrored):
            attempt = begin(store, run.id)
            controller._judge(run.id)
            controller._changed.clear()
            ingest(store, attempt.id, line("started"), metrics(1, train_loss=1.0))
            assert controller._changed == ({mirrored.id} if run is mirrored else set())
            store.event_applier.apply(attempt.id)  # It runs now.
            assert run.id in controller._changed
            controller._changed.clear()
            ingest(store, attempt.id, metrics(2, train_loss=1.0))
            store.event_applier.apply(attempt.id)
            assert controller._changed == ({mirrored.id} if run is mirrored else set())


def test_mirror_of_a_deleted_run_is_not_requested_again(tmp_path: Path) -> None:
    wandb = WandbTracking(mode="offline")
    with fresh_store(tmp_path / "home") as store:
        controller = MirrorController(store, Presenter(store), store.home)
        run = store.runs.create(run_spec(tracking={"wandb": wandb.model_dump()}))
        begin(store, run.id)
        controller._judge(run.id)
        notes = Notes(store.home, run.id)
        assert isinstance(notes.request(), MirrorRequest)
        assert controller._requested == {run.id}
        end(store, run.id, RunState.FAILED)
        store.runs.mark_deleted(run.id)
        for _ in range(2):
            controller._judge(run.id)
            assert controller._requested == controller._judged == set()
            assert not notes.folder.exists()
