"""A document that is cut at a step, and the trunk of a sweep over a stage."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.errors import SpecError
from lehr.specs import SweepSpec, load_spec
from lehr.specs.course import cut, shared_stages, trunk_of
from lehr.specs.sweep_expand import trials_at
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


OWN_SCHEDULE = {"name": "constant"}
SHARED_STAGES: list[dict[str, Any]] = [
    {"name": "main", "tokens": 25_600},
    {"name": "wide", "tokens": 25_600, "batch": {"sequences": 8}},
    {"name": "anneal", "tokens": 25_600, "schedule": OWN_SCHEDULE},
]
LR, TOKENS = "train.stages.anneal.optimizer.lr", "train.stages.2.tokens"


def sweep(
    *paths: str, values: tuple = (1e-4, 1e-3), stages=SHARED_STAGES, **fields: Any
) -> SweepSpec:
    run = load_spec(RUN_SPEC, {"train.stages": stages}).model_dump(mode="json", exclude_unset=True)
    parameters = {path: {"values": list(values)} for path in paths}
    spec = load_spec({"kind": "sweep", "name": "s", "parameters": parameters, "run": run, **fields})
    assert isinstance(spec, SweepSpec)
    return spec


@pytest.mark.parametrize(
    ("paths", "fields", "shared"),
    [
        ((LR,), {}, 2),
        ((LR, "train.stages.wide.grad_clip"), {}, 1),
        ((LR, "train.stages.0.grad_clip"), {}, 0),
        ((LR, "train.grad_clip"), {}, 0),
        ((LR,), {"seeds": [1, 2]}, 0),
        ((LR,), {"share_stages": False}, 0),
    ],
)
def test_trials_share_the_stages_before_the_first_swept_one(paths, fields, shared):
    spec = sweep(*paths, **fields)
    assert shared_stages(spec) == shared
    assert (trunk_of(spec) is None) == (shared == 0)
    assert SweepSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_trunk_ends_where_the_swept_stage_begins():
    spec = sweep(LR, tags=["a"])
    trunk = trunk_of(spec)
    assert trunk is not None
    whole = spec.run.own.course
    assert [one.config.model_dump() for one in trunk.own.course] == [
        one.config.model_copy(
            update={"checkpoint": one.config.checkpoint.model_copy(update={"save_last": True})}
        ).model_dump()
        for one in whole[:2]
    ]
    assert (trunk.name, trunk.tags, trunk.steps) == ("s-trunk", ["a"], 150)
    assert trunk.notes == "Trains what the trials of s share: main, wide."


def test_stages_that_depend_on_the_swept_values_cannot_be_shared():
    open_end = [*SHARED_STAGES[:2], {"name": "anneal", "tokens": 25_600}]
    long = {"values": (64, 128), "stages": SHARED_STAGES}
    for made, text in (
        (lambda: sweep(TOKENS, values=(2560, 5120), stages=open_end, budget="any"), "its schedule"),
        (lambda: sweep("train.stages.anneal.batch.sequence_length", **long), "its batch"),
    ):
        with pytest.raises(SpecError, match=f"stage main would be trained once .* but {text} dep"):
            made()
    alone = {"budget": "any", "share_stages": False}
    assert shared_stages(sweep(TOKENS, values=(2560, 5120), stages=open_end, **alone)) == 0
    assert shared_stages(sweep(TOKENS, values=(2560, 5120), budget="any")) == 2
    # Of a search, trials that are chosen later are checked, too.
    spec = sweep(LR)
    assert len(trials_at(spec, [{LR: 0.5}])) == 1
    with pytest.raises(SpecError, match="share_stages"):
        trials_at(spec, [{"train.stages.anneal.batch.sequence_length": 128}])


def test_trunk_that_cannot_be_trained_alone_is_refused_with_the_reason():
    average = {"train.average": {"last": 2, "every": 80}}
    with pytest.raises(
        SpecError, match=r"cannot be trained alone: average\.every is 80, but the run"
    ):
        load_spec(sweep(LR).model_dump(mode="json"), average)
