"""What a run is, as last read: its view, state and figures."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from lehr.faces.client.server_object import ObjectMethods
from lehr.schemas.runs import Latest, RunDetail, RunView

if TYPE_CHECKING:
    from lehr.specs import RunSpec
    from lehr_trainer.configs.train import TrainConfig

V = TypeVar("V", bound=BaseModel)
ENDED = frozenset({"completed", "failed", "cancelled", "pruned"})


class RunStateMethods(ObjectMethods[RunView]):
    """A part of ``lehr.faces.client.runs.Run``: what its view has, and reading it again."""

    _places = "runs"

    def _detail_of(self, answer: bytes) -> RunDetail:
        return RunDetail.model_validate_json(answer)

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def ended(self) -> bool:
        return self.view.state in ENDED

    @property
    def step(self) -> int | None:
        """Return the optimizer steps done, as last reported."""
        return self.view.step

    @property
    def attempt(self) -> int:
        """Return the number of its newest attempt; 0 before the first."""
        return self.view.attempt

    @property
    def reason(self) -> str | None:
        """Return why it is in its state, or why it waits."""
        return self.view.reason or self.view.pending_reason

    @property
    def tags(self) -> list[str]:
        return self.view.tags

    @property
    def latest(self) -> dict[str, Latest]:
        return self.view.latest

    @property
    def detail(self) -> RunDetail:
        """Return the view with spec, provenance and attempts."""
        if not isinstance(self.view, RunDetail):
            self.refresh()
        assert isinstance(self.view, RunDetail)
        return self.view

    @cached_property
    def spec(self) -> RunSpec:
        from lehr.specs import RunSpec

        return RunSpec.model_validate(self.detail.spec)

    @property
    def config(self) -> TrainConfig:
        """Return the trainer's config, e.g. ``run.config.optimizer.lr``."""
        return self.spec.own

    def __repr__(self) -> str:
        step, total = self.view.step, self.view.total_steps
        done = f", step {step:,}" if step is not None else ""
        of = f" of {total:,}" if total else ""
        return f"<Run {self.id} {self.name}: {self.state}{done}{of}>"

    def _repr_html_(self) -> str:
        from lehr.faces.client.notebook import run_html

        return run_html(self.view, self.url)

    def _list(self, path: str, kind: type[V], params: dict[str, Any] | None = None) -> list[V]:
        answer = self._transport.get(f"/runs/{self.id}{path}", params)
        found: list[V] = TypeAdapter(list[kind]).validate_json(answer)  # type: ignore[valid-type]
        return found
