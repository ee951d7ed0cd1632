"""``Sweep``: one sweep of a server, with its trials and their ranking."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lehr.base import formats
from lehr.errors import Conflict, NotFound
from lehr.faces.client.checkpoints import LONG_S
from lehr.faces.client.notebook import Drawing, import_pandas, trials_frame
from lehr.faces.client.runs import Run
from lehr.faces.client.server_object import ObjectMethods
from lehr.faces.client.submission import load, plain
from lehr.schemas.campaigns import CampaignView
from lehr.schemas.sweeps import (
    AuditView,
    SweepDeletion,
    SweepDetail,
    SweepFigure,
    SweepView,
    TransferView,
    TrialView,
)

if TYPE_CHECKING:
    import pandas as pd

    from lehr.specs import RolloutSpec, RunSpec
    from lehr.specs.overrides import Overrides


PAGE = 1000
"""Trials of one answer: the most that the server gives."""
WATCHED = ("starting", "running", "stopping", "failed")
"""States of the runs that a view of a longer sweep has while it is waited for."""


class Sweep(ObjectMethods[SweepView, SweepDetail]):
    """A sweep as last read; ``refresh()`` reads it again.

    Only the first trials are read at once. The others are read when they are used.
    """

    _detail_type = SweepDetail

    @property
    def ended(self) -> bool:
        return self.view.state == "finished"

    @property
    def detail(self) -> SweepDetail:
        """Return the view with all of its trials, spec and notes."""
        view = self._whole
        if view.next_cursor is None:
            return view
        trials = list(view.trials)
        cursor: str | None = view.next_cursor
        while cursor is not None:
            page = self._read(cursor=cursor)
            trials += page.trials
            cursor = page.next_cursor
        self.view = view.model_copy(update={"trials": trials, "next_cursor": None})
        return self.view

    @property
    def trials(self) -> list[TrialView]:
        """Return the trials in the sweep's order."""
        return self.detail.trials

    @property
    def notes(self) -> list[str]:
        """Return notes on the result: the best is at the edge of the values tried, ..."""
        return self._whole.notes

    def results(self) -> list[TrialView]:
        """Return the trials, best first; those without a rank come last, in the sweep's order."""
        return sorted(self.trials, key=lambda trial: trial.place)

    def runs(self) -> list[Run]:
        """Return the runs, one per trial, in the sweep's order."""
        return [Run(self._transport, trial.run) for trial in self.trials]

    def best(self) -> Run:
        """Return the best run, by the sweep's metric at equal step.

        Raises:
            Conflict: its trials were evaluated on different held-out sets, or are those of a
                campaign, of different sizes: they have no ranking.
            NotFound: no run has a finite value yet.
        """
        view = self._whole
        if view.held_out == "different":
            raise Conflict(
                f"sweep {self.name} has no best run. {view.held_out_note}",
                hint="Every trial's value and held-out set: frame()",
            )
        if view.method == "campaign":
            hint = "The best of each size: campaign().rung_table"
            raise Conflict(f"the trials of {self.name} differ in size, so none is best.", hint=hint)
        for trial in view.best_trials:
            if trial.best:
                return Run(self._transport, trial.run)
        raise NotFound(
            f"no run of sweep {self.name} has a finite {self.view.metric} yet.",
            hint="wait() returns once all its runs have ended.",
        )

    def refresh(self) -> Self:
        self.view = self._read()
        return self

    @property
    def _whole(self) -> SweepDetail:
        """Return the view of the whole sweep, with the trials that were read."""
        return super().detail

    def _read(
        self, *, cursor: str | None = None, states: Sequence[str] | None = None
    ) -> SweepDetail:
        params = {"limit": PAGE, "cursor": cursor, "state": states}
        return self._transport.read(SweepDetail, f"/sweeps/{self.id}", params)

    def retry(self, *, idempotency_key: str | None = None) -> Self:
        """Queue its failed trials again, and those that never ran because it was stopped."""
        return self._act("retry", key=idempotency_key or uuid.uuid4().hex)

    def campaign(self, steps: int = 0) -> CampaignView:
        """Return what a campaign was asked, has tried, and believes of its target now; after so
        many ``steps`` of its trials also what was believed then (``course``).
        """
        return self._transport.read(CampaignView, f"/sweeps/{self.id}/campaign", {"steps": steps})

    def pause(self) -> Self:
        """Save and stop its live runs. A campaign adds none until they are resumed."""
        for trial in self._read(states=("queued", "starting", "running")).trials:
            Run(self._transport, trial.run).pause()
        return self.refresh()

    def resume(self) -> Self:
        """Queue its paused runs again, from their checkpoints."""
        for trial in self._read(states=("paused",)).trials:
            Run(self._transport, trial.run).resume()
        return self.refresh()

    def deletion(self) -> SweepDeletion:
        """Return what ``delete`` would free."""
        return self._transport.read(SweepDeletion, f"/sweeps/{self.id}/deletion")

    def delete(self) -> SweepDeletion:
        """Delete its runs' checkpoints, metrics, logs and files, for good. The record stays."""
        answer = self._transport.delete(f"/sweeps/{self.id}", within_s=LONG_S)
        return SweepDeletion.model_validate_json(answer)

    def extend(
        self,
        parameters: Mapping[str, Sequence[Any]] | None = None,
        *,
        points: Sequence[Mapping[str, Any]] | None = None,
        trials: int | None = None,
        gpu_hours: float | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Add trials, also after it has finished.

        To a grid more values by dotted path, to a list more points, each with its values by dotted
        path, to a search so many points, to a campaign so many GPU-hours. With
        ``idempotency_key``, repeating the request is safe.
        """
        more = [("parameters", parameters), ("points", points), ("trials", trials)]
        body = {name: v for name, v in [*more, ("gpu_hours", gpu_hours)] if v is not None}
        return self._act("extend", body, key=idempotency_key or uuid.uuid4().hex)

    def transfer(
        self,
        spec: Path | str | dict[str, Any] | RunSpec | RolloutSpec,
        overrides: Overrides = (),
        *,
        rule: str | None = None,
    ) -> TransferView:
        """Return the learning rate for a larger training, with its interval and its reasons.

        ``yaml`` of the answer is the spec with that rate. Nothing is recorded. ``spec`` is the run
        or rollout that needs a rate: the path of a file, YAML text, a dict or a spec. Without
        ``rule``, the one with the least regret on published runs is taken.

        Raises:
            SpecError: the spec is not valid.
            UserError: the sweep has no verdict on a learning rate, or no rule reaches the target.
        """
        loaded, _ = load(spec, overrides)
        body = {"spec": plain(loaded), "rule": rule}
        answer = self._transport.post(f"/sweeps/{self.id}/transfer", body)
        return TransferView.model_validate_json(answer)

    def _watched(self) -> SweepDetail:
        partly = sum(self.view.counts.values()) > PAGE
        detail = self._read(states=WATCHED if partly else None)
        # Whoever asks for trials later gets all of them.
        self.view = SweepView(**detail.model_dump()) if partly else detail
        return detail

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per trial, of a live sweep with its newest values."""
        import_pandas("frame()")
        if not self.ended:
            self.refresh()
        return trials_frame(self.trials, self.view.metric)

    def audit(self) -> AuditView:
        """Return what the rule ``forecast`` would have stopped in the server's finished sweeps."""
        return self._transport.read(AuditView, f"/sweeps/{self.id}/audit")

    def importance(self) -> dict[str, float]:
        """Return how much each varied parameter decides the metric, the largest share first.

        The shares are those of Optuna's PED-ANOVA. Empty for fewer than ten compared trials,
        fewer than five for each parameter, or a single parameter.
        """
        return self._figure().importance

    def plot(self, parameter: str | None = None) -> Drawing:
        """Plot the metric against a swept parameter (the learning rate by default), with its fit.

        Raises:
            NotFound: the sweep does not vary ``parameter``.
        """
        figure = self._figure(parameter)
        link = rf'<a href="{self._transport.server}/runs/\1">\2</a>'
        linked = re.sub(r'(?s)<g data-run="(\w+)">(.*?)</g>', link, figure.svg)
        return Drawing([linked], figure.verdict)

    def _figure(self, parameter: str | None = None) -> SweepFigure:
        path = f"/sweeps/{self.id}/figure"
        return self._transport.read(SweepFigure, path, {"parameter": parameter})

    def __repr__(self) -> str:
        view = self.view
        parts = [f"{count} {state}" for state, count in view.counts.items() if count]
        parts += [f"best {view.metric} {formats.loss(view.best_value)}"] if view.best_value else []
        return f"<Sweep {self.id} {self.name}: {self.state} ({', '.join(parts)})>"

    def _repr_html_(self) -> str | None:
        from lehr.faces.client.notebook import sweep_html

        return sweep_html(self._whole, self.url)
