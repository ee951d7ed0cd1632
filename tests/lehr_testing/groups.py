"""What a tick does for sweeps and rollouts, without a cluster and without other runs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, cast

from lehr.cluster.executor import Executor, give_up
from lehr.cluster.group_loader import GroupLoader
from lehr.cluster.isolation import Isolation
from lehr.cluster.membership import Cluster
from lehr.control.snapshot import Snapshot
from lehr.control.step import step
from lehr.store import Store


class Groups:
    """Loads the sweeps and rollouts that have changed, decides, and acts."""

    def __init__(self, store: Store, runs_dir: Path | None = None) -> None:
        self.elapsed_s = 0.0
        isolation = Isolation(partial(give_up, store), time.monotonic)
        self.loader = GroupLoader(
            store, runs_dir or store.home / "runs", isolation, lambda: self.elapsed_s
        )
        self.changed, self.enqueue_all = self.loader.changed, self.loader.enqueue_all
        no_launcher = cast("Any", None)
        self.executor = Executor(
            store, Cluster({}), no_launcher, isolation, lambda attempt_id: None
        )

    def tick(self) -> None:
        """Ticks until nothing changes any more, as the dispatcher's loop does."""
        for _ in range(60):
            snapshot = Snapshot(sweeps=self.loader.sweeps(), rollouts=self.loader.rollouts())
            applied = self.executor.apply(step(snapshot))
            for subject in {*applied.changed, *applied.failed}:
                self.loader.enqueue(subject)
            if not applied.changed:
                return
        raise AssertionError("it never comes to rest")
