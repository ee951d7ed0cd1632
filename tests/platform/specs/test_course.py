"""A document that is cut at a step: its steps are trained as in the whole one."""

from __future__ import annotations

from typing import Any

from lehr.specs import load_spec
from lehr.specs.course import cut
from lehr_testing.api import RUN_SPEC
from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.configs.train import TrainConfig

WEB, CODE = ({"kind": "text", "paths": [f"/{name}"]} for name in ("web", "code"))
STAGES: list[dict[str, Any]] = [
    {"name": "web", "tokens": 10_000, "data": {"corpus": WEB}},
    {"tokens": 9_999, "data": {"corpus": CODE}, "batch": {"sequence_length": 32}},
    {"tokens": 9_000, "data": {"corpus": WEB}, "batch": {"sequences": 8}, "schedule": "cosine"},
    {"tokens": 9_001, "batch": {"sequence_length": 128}, "optimizer": {"lr": 1e-4}},
]


def trained(config: TrainConfig, steps: int) -> list[tuple[Any, ...]]:
    """What decides on each of the first steps."""
    return [
        (
            stage.span.tokens_at(step + 1),
            (stage.config.batch.sequences, stage.config.batch.sequence_length),
            stage.config.batch.longest_sequence,
            stage.config.data,
            stage.config.optimizer,
            lr_factor(stage.config.schedule, step + 1, stage.config.steps),
        )
        for stage in config.course
        for step in range(stage.span.first, min(stage.span.last, steps))
    ]


def test_a_cut_document_trains_its_steps_as_the_whole_one() -> None:
    whole = load_spec(RUN_SPEC, {"train.stages": STAGES}).own
    assert [stage.config.batch.longest_sequence for stage in whole.course] == [128, 32, 128, 128]
    spans = [stage.span for stage in whole.course]
    for step in (1, spans[0].last, spans[1].first + 1, spans[1].last, spans[2].last, whole.steps):
        changes = {f"train.{path}": value for path, value in cut(whole, step).items()}
        short = load_spec(RUN_SPEC, {"train.stages": STAGES, **changes}).own
        assert short.steps == step
        assert trained(short, step) == trained(whole, step), step
