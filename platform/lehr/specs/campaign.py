"""The spec of a campaign: from a budget to the plan of a large run.

A campaign is a sweep of method ``campaign``: smaller and shorter versions of its target, the rungs,
each tried at values that a pure function chooses. ``specs.ladder`` makes the sweep of a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lehr.base import formats
from lehr.specs.overrides import name_the_run
from lehr.specs.run import LONGEST_NOTE, Name, RunSpec
from lehr_trainer.configs.base import Config, PositiveInt

Role = Literal["rate", "batch", "other"]
Positive = Annotated[float, Field(gt=0)]


class CampaignBudget(Config):
    """What all trials together may cost. It is never exceeded."""

    gpu_hours: Positive | None = None
    """GPU-hours of all attempts; a trial on a CPU counts as one on a GPU."""
    dollars: Positive | None = None
    """Dollars, at ``price``."""
    price: Positive | None = None
    """Dollars per GPU-hour. By default that of target.resources.gpu_type in the table of GPUs."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.gpu_hours is None) == (self.dollars is None):
            raise ValueError("give either gpu_hours or dollars")
        return self


class Bounds(Config):
    """Where the best value of the target may lie."""

    min: float
    """Its lower bound."""
    max: float
    """Its upper bound."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min < self.max:
            raise ValueError(f"min {self.min:g} is not below max {self.max:g}")
        return self


class Enough(Config):
    """What is good enough: no further trial starts."""

    lr_regret: Positive = 0.005
    """Loss that the recommended values are expected to cost above the best ones, in nats."""
    loss_within: Positive | None = 0.02
    """Half of the 68 % interval of the target's final loss, in nats. null: any width."""


class Decided(Bounds):
    """A number that the campaign decides, as it was resolved from ``decide``."""

    role: Role
    """What it is: the learning rate, the batch, or another value."""
    start: float
    """The target's own value; else the middle of the bounds."""
    whole: bool = False
    """Only whole numbers."""

    def rounded(self, value: float) -> float:
        """Return a value as it is tried: with three digits, or a whole number."""
        return round(value) if self.whole else float(f"{value:.3g}")


class LadderRung(Config):
    """A training that trials may use: the target, smaller or shorter."""

    point: dict[str, Any] = {}
    """Values by path that make it of the target, shown with each trial."""
    set: dict[str, Any] = {}
    """More of them, which follow from these."""
    width: PositiveInt
    """Of the residual stream."""
    depth: PositiveInt
    """Blocks."""
    parameters: PositiveInt
    """All of them, embeddings included."""
    non_embedding: PositiveInt
    """Those without embeddings."""
    sequences: PositiveInt
    """Of a step, where the batch is not decided."""
    batch: PositiveInt
    """The same in tokens."""
    tokens: PositiveInt
    """Of the whole training."""
    flops: float
    """Of a trial, its evaluations included."""
    gpus: Annotated[int, Field(ge=0)]
    """GPUs of a trial."""

    @property
    def ranks(self) -> int:
        return max(self.gpus, 1)

    @property
    def title(self) -> str:
        return f"width {self.width:,}, {formats.millions(self.tokens)} tokens"

    def start(self, decided: Decided) -> float:
        """Return the target's value, or this rung's batch, to check it with."""
        return self.sequences if decided.role == "batch" else decided.rounded(decided.start)


class Campaign(Config):
    """What a sweep of method ``campaign`` decides, and by which trainings."""

    gpu_hours: Positive
    """The budget: GPU-hours of all attempts."""
    price: float | None = None
    """Dollars per GPU-hour."""
    decide: dict[str, Decided]
    """By dotted path into ``run``."""
    answer: Enough = Enough()
    """What is good enough."""
    published: bool = True
    """Whether published runs count as a weak prior."""
    target: LadderRung
    """The training in question."""
    rungs: Annotated[list[LadderRung], Field(min_length=1)]
    """From the cheapest."""


def _by_path(raw: Any) -> Any:
    return {str(path): None for path in raw} if isinstance(raw, list) else raw


class CampaignSpec(Config):
    kind: Literal["campaign"] = "campaign"
    name: Name
    """Name of the campaign. Its runs are ``<name>-1``, ``<name>-2``, ..."""
    project: Name = "default"
    """Project of the campaign and its runs."""
    tags: list[str] = []
    """Tags of the campaign and its runs."""
    notes: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""
    """Notes in free text."""
    target: RunSpec
    """The run in question: the file of a run or a rollout, or the run itself."""
    budget: CampaignBudget
    decide: Annotated[dict[str, Bounds | None], Field(min_length=1), BeforeValidator(_by_path)] = {
        "train.optimizer.lr": None
    }
    """Numbers of the target to decide, by dotted path: a list, or a mapping to {min, max}. By
    default a learning rate may lie 16 times lower or higher than the target's, others 4 times.
    """
    answer: Enough = Enough()
    metric: str = "val/loss"
    """The loss in question."""
    published: bool = True
    """Published runs count as a weak prior. false: only the campaign's own trials count."""
    smallest_width: PositiveInt = 32
    """Least hidden size of a rung."""
    max_concurrent: PositiveInt | None = None
    """Trials at the same time. null: no limit but the queue's."""

    _named = model_validator(mode="before")(name_the_run)
