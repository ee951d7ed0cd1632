"""``Rollout``: one rollout of a server, with its stages and gates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lehr.client.files import save
from lehr.client.frames import gates_frame, import_pandas
from lehr.client.progress import rollout_progress
from lehr.client.runs import Run
from lehr.client.waiting import Wait, until_ended
from lehr.errors import NotFound, nearest
from lehr.schemas.rollouts import GateView, RolloutDetail, RolloutView, StageView

if TYPE_CHECKING:
    import pandas as pd

    from lehr.client.transport import Transport


class Rollout:
    """A rollout as last read; ``refresh()`` reads it again."""

    def __init__(self, transport: Transport, view: RolloutView) -> None:
        self._transport = transport
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        """running, passed, failed or cancelled."""
        return self.view.state

    @property
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        return self.view.note

    @property
    def ended(self) -> bool:
        return self.view.state != "running"

    @property
    def reason(self) -> str | None:
        """Return why it stopped."""
        return self.view.reason

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        return f"{self._transport.server}/rollouts/{self.id}"

    @property
    def detail(self) -> RolloutDetail:
        """Return the view with its stages, spec and notes."""
        if not isinstance(self.view, RolloutDetail):
            self.refresh()
        assert isinstance(self.view, RolloutDetail)
        return self.view

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
            near = nearest(stage, names)
            raise NotFound(
                f"rollout {self.name} has no stage {stage!r}.",
                hint=f"Did you mean {near}?" if near else f"It has: {', '.join(names)}",
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

    def refresh(self) -> Self:
        self.view = RolloutDetail.model_validate_json(self._transport.get(f"/rollouts/{self.id}"))
        return self

    def cancel(self) -> Self:
        """Start no more runs, and stop the current one without saving."""
        return self._act("cancel")

    def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Its runs keep theirs."""
        answer = self._transport.put(f"/rollouts/{self.id}/note", {"note": note})
        self.view = RolloutDetail.model_validate_json(answer)
        return self

    def archive(self) -> Self:
        """Hide it from lists, once it has ended. Its runs stay listed."""
        return self._act("archive")

    def unarchive(self) -> Self:
        return self._act("unarchive")

    def _act(self, verb: str) -> Self:
        answer = self._transport.post(f"/rollouts/{self.id}/{verb}", None)
        self.view = RolloutDetail.model_validate_json(answer)
        return self

    def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[RolloutDetail], None] | None = None,
    ) -> Self:
        """Wait until it has ended. Interrupting only stops the waiting, never a run.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        waiting = Wait(f"rollout {self.name} ({self.id})", timeout_s, self._transport.sleep)
        shown = nullcontext(progress) if progress else rollout_progress(self.name, self.url)
        until_ended(self, waiting, shown, lambda: self.detail)
        return self

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per gate of each stage."""
        import_pandas("frame()")
        return gates_frame(self.stages)

    def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has stages, gates, curves, cost and config.

        Raises:
            UserError: the file cannot be written.
        """
        return save(self._transport.get(f"/rollouts/{self.id}/report"), path)

    def __repr__(self) -> str:
        states = ", ".join(f"{name} {state}" for name, state in self.view.progress.items())
        return f"<Rollout {self.id} {self.name}: {self.state} ({states})>"

    def _repr_html_(self) -> str:
        from lehr.notebook import rollout_html

        return rollout_html(self.detail, self.url)
