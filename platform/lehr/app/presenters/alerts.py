"""Alerts of runs: diagnosed from their curves as a run proceeds, then cached."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import EXACT, JUDGED, Alert, diagnose
from lehr.analysis.diagnosis.signs import Loss, Places
from lehr.base.lru import Lru
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.store import Store
from lehr.store.changes import Change, ChangedRuns
from lehr.store.ids import attempt_id
from lehr.store.tables import RunRow

if TYPE_CHECKING:
    from lehr.app.presenters.runs import RunPresenter

_POINTS = 2_000
"""More points would not change a verdict; most longer series are reduced to this many."""
_AGAIN_AFTER = 0.01  # Share of a run's steps after which it is diagnosed again.
_REMEMBERED = 20_000
"""Lists do not show the alerts of an ended run beyond these until it is diagnosed again. Most have
none, and take some 200 bytes.
"""


class Alerts:
    """Diagnoses of one store's runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Lru[tuple[str, int], tuple[tuple[int, bool, int], tuple[Alert, ...]]] = Lru(
            _REMEMBERED
        )

    def of_run(self, run: RunRow, step: int | None, *, read_curves: bool) -> tuple[Alert, ...]:
        """Return the alerts of ``run``, whose newest step is ``step``.

        A list passes ``read_curves`` for active runs and uses cached alerts of the others: reading
        the curves of a thousand ended runs would take seconds.
        """
        key = (run.id, run.attempt)
        (seen, had_ended, gaps), alerts = self._known.get(key) or ((-1, False, 0), ())
        if step is None or not read_curves:
            return alerts
        ended = RunState(run.state).ended
        length = run.stored.total_steps or step
        due = step if ended else seen + max(1, int(length * _AGAIN_AFTER))
        state = (step, ended, len(self._store.streams.gaps(attempt_id(*key))))
        # An attempt may begin below the step of the one before it.
        old = seen < 0 or (step != seen and not seen < step < due)
        if old or (had_ended, gaps) != state[1:]:
            alerts = tuple(self._diagnose(run, step))
            self._known.put(key, (state, alerts))
        return alerts

    def _diagnose(self, run: RunRow, step: int) -> list[Alert]:
        train = run.stored.train
        curves = {}
        for name in JUDGED:
            exact = name in EXACT
            options = {"points": _POINTS, "exact": exact, "with_superseded": exact}
            for series in self._store.series.read_many([run.id], name, **options):
                # After a rewind, later attempts train on other data at the same steps on purpose.
                branches = [] if run.rewound else series.superseded
                earlier = tuple(Curve(branch.step, branch.y) for branch in branches)
                curves[name] = Curve(series.step, series.y, earlier)
        steps = run.stored.total_steps
        if steps is None and run.state == RunState.COMPLETED:
            steps = step
        losses, places = self._losses(run, step), self._places(run)
        if not train or steps is None:
            return diagnose(curves, total_steps=steps, losses=losses, places=places)
        return diagnose(
            curves,
            total_steps=steps,
            warmup_steps=run.stored.warmup_steps,
            changes=run.stored.changes,
            losses=losses,
            places=places,
        )

    def _places(self, run: RunRow) -> Places:
        """Return where the newest attempt with points trains."""
        spans = self._store.series.spans(run.id)
        if not spans:
            return Places()
        placement = self._store.attempts.get(attempt_id(run.id, spans[-1].attempt)).placement
        ranks = (f"{share['node']}, GPU {gpu}" for share in placement for gpu in share["gpus"])
        return Places(spans[-2].limit if len(spans) > 1 else 0, tuple(ranks))

    def _losses(self, run: RunRow, newest: int) -> list[Loss]:
        """Return what the run did and what is not on record."""
        losses = [
            Loss(
                steps.first,
                f"steps {steps.first:,} to {steps.last:,} are not on record: attempt "
                f"{steps.attempt} recorded none after {steps.first - 1:,}, and a later one went "
                f"on from step {steps.last:,}",
            )
            for steps in self._store.series.unrecorded(run.id)
        ]
        for number in range(1, run.attempt + 1):
            attempt = attempt_id(run.id, number)
            gaps = [gap.text for gap in self._store.streams.gaps(attempt) if gap.shorter]
            if gaps:
                of_newest = number == run.attempt
                step = newest if of_newest else self._store.attempts.get(attempt).last_step or 0
                text = f"after step {step:,} of attempt {number}, {'; '.join(gaps)}"
                losses.append(Loss(step, text))
        return losses


NEWEST = 300  # Number of runs that had ended before the start to diagnose.
GATHER_S = 0.5
"""Changes are gathered for so long, so that one query finds the runs among them that have ended."""


class BackgroundDiagnosis:
    """A thread that diagnoses runs as they end, and after a start the newest ended ones.

    A diagnosis reads a run's curves, which would take too long in a list of a thousand runs.
    """

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs
        self.changed = ChangedRuns(
            store,
            self._look,
            name="diagnoses",
            gather_s=GATHER_S,
            of_interest=lambda change: change.kind == "run",
            choose=self._ended,
        )

    def start(self) -> None:
        ended = [state for state in RunState if state.ended]
        newest = self._store.runs.page(states=ended, limit=NEWEST).items
        self.changed.start(run.id for run in newest)

    def stop(self) -> None:
        self.changed.stop()

    def _ended(self, changed: list[str]) -> list[str]:
        """Return the runs to diagnose. A live one changes with each step: its row is not read."""
        return self._store.runs.ended_among(changed)

    def _look(self, run_id: str) -> None:
        with contextlib.suppress(NotFound):  # Deleted meanwhile.
            if self._runs.diagnose(self._store.runs.get(run_id)):
                self._store.notify(Change("run", run_id))
