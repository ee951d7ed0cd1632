"""Plan the stages of a run: their share of its time, their rates, their corpora."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lehr_trainer.configs.corpus import weighed
from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.configs.stages import CourseStage, corpus_places
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.memory import MemoryPlan


@dataclass(frozen=True)
class StagePlan:
    """A stage of a run."""

    name: str
    steps: tuple[int, int]  # Its first and its last.
    tokens: int
    sequences: int  # Of a step.
    sequence_length: int
    micro_batch: int
    corpus: str  # The path in the spec that names its corpus.
    corpus_tokens: dict[str, int]
    """Of each corpus of a mix; of one that is no mix, by the empty name."""
    lr: tuple[float, float, float]
    """Learning rate of the first step, the highest, and of the last step."""
    flops: float
    share: float  # Of the run's FLOPs, and so of its time and cost.
    memory_bytes: int  # The peak on a GPU.


def stage_plans(
    train: TrainConfig, ranks: int, needs: Sequence[MemoryPlan], flops: Sequence[float]
) -> list[StagePlan]:
    """Return a plan of each stage, from its FLOPs and ``needs``; none for a run without stages."""
    if not train.stages:
        return []
    plans = []
    places = [place for place, _ in corpus_places(train)]
    for (span, own), place, work in zip(train.course, places, flops, strict=True):
        parts, batch = weighed(own.data.corpus).items(), span.batch
        plans.append(
            StagePlan(
                name=span.name,
                steps=(span.first + 1, span.last),
                tokens=span.trained,
                sequences=batch.sequences,
                sequence_length=batch.sequence_length,
                micro_batch=batch.micro_batch or batch.sequences // ranks,
                corpus=f"train.{place}data.corpus",
                corpus_tokens={name: round(share * span.trained) for name, (_, share) in parts},
                lr=_rates(own, span.first + 1),
                flops=work,
                share=work / sum(flops),
                memory_bytes=max(need.peak for need in needs if need.stage == span.name),
            )
        )
    return plans


def _rates(train: TrainConfig, first: int) -> tuple[float, float, float]:
    schedule, last = train.schedule, train.steps
    steps = (schedule.ends_after or last) - schedule.starts_after
    highest = min(max(first, schedule.starts_after + schedule.warmup(steps)), last)
    start, peak, end = (
        train.optimizer.lr * lr_factor(schedule, step, last) for step in (first, highest, last)
    )
    return start, max(start, peak, end), end


def stage_flops(stage: CourseStage) -> float:
    """Return FLOPs of a stage, each of its steps at its own sequence length."""
    span, train = stage
    starts = [span.first, *train.batch.changes(train.steps), span.last]
    return sum(
        (end - start)
        * train.tokens_per_step
        * flops_per_token(train.model, train.batch.at(start, train.steps).sequence_length)
        for start, end in itertools.pairwise(starts)
    )
