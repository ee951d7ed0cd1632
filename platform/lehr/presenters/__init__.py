"""Presenters: convert stored rows to the views that the API returns.

``Presenter`` reads many runs at once, so a list of a thousand needs only a few queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.presenters.background_diagnosis import BackgroundDiagnosis
from lehr.presenters.events import checkpoints, events, samples
from lehr.presenters.rollouts import RolloutPresenter
from lehr.presenters.runs import RunPresenter, Silences
from lehr.presenters.sweeps import SweepPresenter

if TYPE_CHECKING:
    from lehr.store import Store

__all__ = ["Presenter", "checkpoints", "events", "samples"]


class Presenter:
    """The views of one store: runs, sweeps and rollouts. May be used from any thread."""

    def __init__(self, store: Store, *, silences: Silences = dict) -> None:
        """Create the presenters. ``silences`` returns the liveness of runs with a living
        attempt, by run id.
        """
        self.runs = RunPresenter(store, silences)
        self.sweeps = SweepPresenter(store, self.runs)
        self.rollouts = RolloutPresenter(store, self.runs)
        self.rounds = BackgroundDiagnosis(store, self.runs)
        """Not running until it is started."""
