"""Tasks that a training is evaluated on beside its loss: pure, no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lehr_trainer.configs.base import Config, NonNegativeInt, OrNone, PositiveInt
from lehr_trainer.configs.corpus import PartName

TaskKind = Literal["multiple_choice", "schema", "continuation", "perplexity"]
SHIPPED = ("stdlib_modules", "stdlib_signatures")
"""Task files that come with Lehr, about Python's standard library."""
RESERVED = ("mean", "average")
"""Names in metrics that no task can have: ``task/mean``, ``task/average/NAME``."""


_VALUE = r"(mean|([^/]+)/(accuracy(_centred)?|bits_per_byte|loss))"
METRIC = rf"task/(average/)?{_VALUE}"
"""Names of the metrics of tasks: of which weights, of which task."""
LOWER_IS_BETTER = ("/bits_per_byte", "/loss")


def _judges(value: object) -> object:
    if isinstance(value, bool) or (
        isinstance(value, str) and re.fullmatch(f"task/{_VALUE}", value)
    ):
        return value
    raise ValueError(
        "it is true for val/loss, false, or the value of a task: task/mean, task/NAME/accuracy, "
        "accuracy_centred, bits_per_byte or loss"
    )


JudgedBy = Annotated[bool | str, BeforeValidator(_judges)]


def in_training(metric: str, where: Mapping[str, str]) -> bool:
    """Return whether a metric of tasks is one that the training itself evaluates."""
    name = metric.split("/")[1]
    return {*where.values()} == {"training"} if name == "mean" else where.get(name) == "training"


class TaskConfig(Config):
    """A task: a file of items, how they are asked, and how often."""

    name: PartName
    """Of its metrics: ``task/NAME/accuracy``."""
    path: str
    """JSON lines in the form of the CORE bundle, or samples that lm-eval has logged; or
    ``stdlib_modules`` and ``stdlib_signatures``, which come with Lehr."""
    kind: OrNone[TaskKind] = None
    """multiple_choice: one query, several choices. schema: several contexts, one continuation.
    continuation: right if each of its tokens is the likeliest. perplexity: whole texts. Seen by the
    fields of the first item if not given."""
    every: NonNegativeInt = 1000
    """Steps between evaluations; 0 evaluates only after the last step."""
    shots: NonNegativeInt = 0
    """Other items of the file, with their answers, before each item."""
    limit: PositiveInt | None = 1000
    """Most items that are scored, chosen by their hash, the same for each run; null scores all."""
    delimiter: str = " "
    """Between a query and its answer: ``continuation_delimiter`` of the CORE bundle."""
    where: Annotated[
        Literal["training", "beside"], Field(exclude_if=lambda where: where == "training")
    ] = "training"
    """training: in its steps. beside: each kept checkpoint is evaluated by a run of its own, on a
    GPU that no training needs."""

    @model_validator(mode="after")
    def _kept_checkpoints_decide(self) -> Self:
        if self.where == "beside" and self.every != type(self).model_fields["every"].default:
            raise ValueError(
                f"every is {self.every}, but a task beside the training is evaluated on each kept "
                "checkpoint; leave it out, and set train.checkpoint.every"
            )
        return self


def distinct(tasks: list[TaskConfig]) -> list[TaskConfig]:
    """Raise ValueError if two tasks have one name, or one has that of other metrics."""
    names = [*RESERVED, *(task.name for task in tasks)]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ValueError(f"evals: the name {twice[0]} is in use; choose another one")
    return tasks


Tasks = Annotated[
    list[TaskConfig], Field(exclude_if=lambda tasks: not tasks), AfterValidator(distinct)
]
