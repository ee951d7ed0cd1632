"""A campaign's choice is made beside the ticks, and applied only to the record that asked for it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from lehr.cluster import group_loader
from lehr.cluster.group_loader import SweepLoader
from lehr.control.sweeps import AddTrials, actions
from lehr.store import Change, Store
from lehr_testing.campaigns import campaign, recorded


class Slow:
    """An executor whose work is done when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Future[Any], Any]] = []

    def submit(self, choose: Any, *asked: Any) -> Future[Any]:
        self.asked.append((Future(), lambda: choose(*asked)))
        return self.asked[-1][0]

    def finish(self) -> None:
        future, made = self.asked[-1]
        future.set_result(made())


def test_a_choice_waits_in_no_tick_and_counts_for_its_record_only(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, news = Slow(), list[Change]()
    monkeypatch.setattr(group_loader, "BESIDE", slow)
    sweep = recorded(store)
    loader = SweepLoader(store, tmp_path, time.monotonic)
    assert actions(loader.load(sweep.id)) == actions(loader.load(sweep.id)) == []
    assert len(slow.asked) == 1
    store.subscribe(news.append)
    slow.finish()
    assert [(one.kind, one.id) for one in news] == [("sweep", sweep.id)]
    [first] = actions(loader.load(sweep.id))
    assert isinstance(first, AddTrials)
    # Another record than the one that asked.
    spec = campaign(budget={"gpu_hours": 0.5})
    assert store.sweep_progress.add_trials(sweep.id, [], spec=spec, known=9, actor="a")
    assert actions(loader.load(sweep.id)) == []
    slow.finish()
    [second] = actions(loader.load(sweep.id))
    assert isinstance(second, AddTrials)
    assert len(slow.asked) == 2
