"""``Rollout``: one rollout of a server, with its stages and gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.errors import NotFound, did_you_mean
from lehr.faces.client.notebook import gates_frame, import_pandas
from lehr.faces.client.runs import Run
from lehr.faces.client.server_object import ObjectMethods
from lehr.schemas.rollouts import GateView, RolloutDetail, RolloutView, StageView

if TYPE_CHECKING:
    import pandas as pd


class Rollout(ObjectMethods[RolloutView, RolloutDetail]):
    """A rollout as last read; ``refresh()`` reads it again."""

    _detail_type = RolloutDetail

    @property
    def ended(self) -> bool:
        return self.view.state != "running"

    @property
    def reason(self) -> str | None:
        """Return why it stopped."""
        return self.view.reason

    @property
    def stages(self) -> list[StageView]:
        """Return all stages in order, including future ones."""
        return self.detail.stages

    @property
    def notes(self) -> list[str]:
        """Return notes: a stage that was left out, a gate that could not be judged."""
        return self.detail.notes

    def gates(self, stage: str | None = None) -> list[GateView]:
        """Return the gates of one stage, or of all in order.

        Raises:
            NotFound: it has no such stage.
        """
        if stage is None:
            return [gate for one in self.stages for gate in one.gates]
        found = next((one for one in self.stages if one.name == stage), None)
        if found is None:
            names = [one.name for one in self.stages]
            raise NotFound(
                f"rollout {self.name} has no stage {stage!r}.",
                hint=did_you_mean(stage, names) or f"It has: {', '.join(names)}",
            )
        return found.gates

    def runs(self) -> list[Run]:
        """Return all runs submitted so far, in order."""
        return [Run(self._transport, one.run) for stage in self.stages for one in stage.runs]

    def run(self) -> Run:
        """Return the run of the last stage.

        Raises:
            NotFound: the last stage has not begun.
        """
        for one in self.stages[-1].runs:
            return Run(self._transport, one.run)
        raise NotFound(
            f"rollout {self.name} has not reached its last stage.",
            hint=self.reason or f"It is at stage {self.view.stage}.",
        )

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per gate of each stage."""
        import_pandas("frame()")
        return gates_frame(self.stages)

    def __repr__(self) -> str:
        states = ", ".join(f"{name} {state}" for name, state in self.view.progress.items())
        why = f": {self.reason}" if self.reason else ""
        return f"<Rollout {self.id} {self.name}: {self.state}{why} ({states})>"

    def _repr_html_(self) -> str | None:
        from lehr.faces.client.notebook import rollout_html

        return rollout_html(self.detail, self.url)
