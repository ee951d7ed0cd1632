"""Presenters: convert stored rows to the views that the API returns.

``Presenter`` reads many runs at once, so a list of a thousand needs only a few queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lehr.app.presenters.alerts import BackgroundDiagnosis
from lehr.app.presenters.rollouts import RolloutPresenter
from lehr.app.presenters.runs import HeartbeatTimes, LivenessByRun, MirrorViews, RunPresenter
from lehr.app.presenters.streams import checkpoints, events, media, samples
from lehr.app.presenters.sweeps import SweepPresenter
from lehr.control.resources import Node
from lehr.store import Store

__all__ = ["Presenter", "checkpoints", "events", "media", "samples"]


class Presenter:
    """The views of one store: runs, sweeps and rollouts. May be used from any thread."""

    def __init__(
        self,
        store: Store,
        *,
        liveness: LivenessByRun = lambda _: {},
        heartbeat_at: HeartbeatTimes = lambda _: None,
        mirror_view: MirrorViews = lambda _run_id: None,
        nodes: Callable[[], Sequence[Node]] = tuple,
    ) -> None:
        """Args:
        store: what is shown.
        liveness: returns the liveness of each run that has a living attempt, by run id.
        heartbeat_at: when an attempt's last heartbeat came, by its id; None if unknown.
        mirror_view: how far a run's mirror in W&B is.
        nodes: returns all nodes of the cluster.
        """
        self.runs = RunPresenter(store, liveness, mirror_view, heartbeat_at, nodes)
        self.sweeps = SweepPresenter(store, self.runs)
        self.rollouts = RolloutPresenter(store, self.runs)
        self.rounds = BackgroundDiagnosis(store, self.runs)  # Not running until it is started.
