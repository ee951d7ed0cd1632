"""Load the sweeps and rollouts of which something has changed; a fault of one is its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from lehr.cluster.isolation import Isolation
from lehr.cluster.rollout_loader import RolloutLoader
from lehr.cluster.sweep_loader import SweepLoader
from lehr.control.rollouts import OpenRollout
from lehr.control.step import Subject
from lehr.control.sweeps import OpenSweep
from lehr.store import Change, Store

T = TypeVar("T")


class GroupLoader:
    """Sweeps and rollouts are groups of runs: each decides which runs come next."""

    def __init__(
        self, store: Store, runs_dir: Path, isolation: Isolation, now: Callable[[], float]
    ) -> None:
        """``now``: a monotonic clock."""
        self._sweeps = SweepLoader(store, now)
        self._rollouts = RolloutLoader(store, runs_dir)
        self._isolation = isolation

    def enqueue_all(self) -> None:
        """Load every open group with the next snapshot."""
        self._sweeps.enqueue_all()
        self._rollouts.enqueue_all()

    def enqueue(self, subject: Subject) -> None:
        """Load the group again with the next snapshot. Subjects of other kinds are ignored."""
        if subject.kind == "sweep":
            self._sweeps.enqueue(subject.id)
        elif subject.kind == "rollout":
            self._rollouts.enqueue(subject.id)

    def changed(self, change: Change) -> None:
        """Note a change of the record. May be called from any thread; fast."""
        self._sweeps.changed(change)
        self._rollouts.changed(change)

    def sweeps(self) -> list[OpenSweep]:
        """Return the sweeps that have changed since the last call."""
        for run_id in self._sweeps.take_measured():
            find = partial(self._sweeps.enqueue_pruned, run_id)
            self._isolation.do(Subject("run", run_id), "finding its sweep", find)
        return self._load("sweep", self._sweeps.take_changed(), self._sweeps.load)

    def sweeps_in_s(self) -> float | None:
        """Return seconds until a sweep is to be loaded although nothing changes; None: never."""
        return self._sweeps.judges_in_s()

    def rollouts(self) -> list[OpenRollout]:
        """Return the rollouts that have changed since the last call, and have not ended."""
        return self._load("rollout", self._rollouts.take_changed(), self._rollouts.load)

    def _load(
        self,
        kind: Literal["sweep", "rollout"],
        group_ids: list[str],
        load: Callable[[str], T | None],
    ) -> list[T]:
        found: list[T] = []

        def read(group_id: str) -> None:
            if (one := load(group_id)) is not None:
                found.append(one)

        for group_id in group_ids:
            group = Subject(kind, group_id)
            part = "reading it"
            if not self._isolation.do(
                group, part, partial(read, group_id)
            ) and self._isolation.tries_again(group, part):
                self.enqueue(group)
        return found
