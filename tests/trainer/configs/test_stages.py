"""``train.stages``: the steps, configs and schedules that follow from them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.configs.stages import (
    corpus_places,
    corpus_tokens,
    sharing_problem,
    with_same_data,
)
from lehr_trainer.configs.train import TrainConfig

WEB = {"kind": "text", "paths": ["web"]}
CODE = {"kind": "text", "paths": ["code"]}


def config(*stages: dict[str, Any], **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": "tiny",
            "data": {"corpus": WEB, "tokenizer": "byte"},
            "batch": {"sequences": 8, "sequence_length": 64},
            "stages": stages,
            **changes,
        }
    )


def test_a_stage_goes_on_with_what_it_does_not_name() -> None:
    staged = config(
        {"tokens": "10k", "batch": {"sequences": 4, "micro_batch": 2}},
        {"tokens": 5_120, "data": {"loss_mask": "document_starts"}, "grad_clip": 0.5},
        {"tokens": 5_120, "batch": {"sequence_length": 128}, "optimizer": {"lr": 1e-4}},
        {"tokens": 5_120, "batch": {"sequences": 8, "sequence_length": 64}},
    )
    # 10,000 tokens need 40 steps of 256, which are 240 tokens more. They count in the next stage.
    assert [(span.first, span.last, span.tokens) for span, _ in staged.course] == [
        (0, 40, 0),
        (40, 60, 10_240),
        (60, 80, 15_360),
        (80, 90, 20_480),
    ]
    assert (staged.steps, staged.total_tokens) == (90, 25_600)
    assert [staged.tokens_at(step) for step in (1, 40, 41, 90)] == [256, 10_240, 10_496, 25_600]
    batches = [one.config.batch for one in staged.course]
    assert [(b.sequences, b.sequence_length, b.micro_batch) for b in batches] == [
        (4, 64, 2),
        (4, 64, 2),
        (2, 128, 1),
        (8, 64, 1),
    ]
    assert {b.longest_sequence for b in batches} == {128}
    assert [one.config.grad_clip for one in staged.course] == [1.0, 0.5, 0.5, 0.5]
    assert [one.config.masks_tokens for one in staged.course] == [False, True, True, True]
    assert TrainConfig.model_validate(staged.model_dump(mode="json")) == staged


def test_only_stages_that_share_a_corpus_are_cut_into_the_same_blocks() -> None:
    parts = {name: {"corpus": c, "weight": 1} for name, c in (("web", WEB), ("code", CODE))}
    books = {"kind": "text", "paths": ["books"]}
    for corpus, blocks in ((CODE, [64, 128]), ({"kind": "mix", "parts": parts}, [128, 128])):
        staged = config({"tokens": 512}, {"tokens": 512, "data": {"corpus": corpus}, "batch": LONG})
        assert [one.config.batch.longest_sequence for one in staged.course] == blocks
    chain = config(
        {"tokens": 512},
        {"tokens": 512, "data": {"corpus": {"kind": "mix", "parts": parts}}},
        {"tokens": 512, "data": {"corpus": CODE}, "batch": LONG},
        {"tokens": 512, "data": {"corpus": books}, "batch": {"sequence_length": 256}},
    )
    assert [one.config.batch.longest_sequence for one in chain.course] == [128, 128, 128, 256]


LONG = {"sequence_length": 128}


def test_each_corpus_counts_over_all_stages_that_read_it() -> None:
    parts = {name: {"corpus": c, "weight": 1} for name, c in (("web", WEB), ("code", CODE))}
    staged = config(
        {"tokens": 512 * 4},
        {"tokens": 512 * 2, "data": {"corpus": {"kind": "mix", "parts": parts}}},
        {"tokens": 512 * 3, "data": {"corpus": WEB, "loss_mask": "document_starts"}},
        {"tokens": 512},
    )
    web, code = corpus_tokens(staged.course).values()
    assert (web, code) == (512 * (4 + 1 + 3 + 1), 512)
    groups = [[span.name for span, _ in group] for group in with_same_data(staged.course)]
    assert groups == [["1", "3", "4"], ["2"]]
    places = [place for place, _ in corpus_places(staged)]
    assert places == ["", "stages.1.", "stages.2.", "stages.2."]


def test_ranks_that_cannot_share_a_stage_are_told_which() -> None:
    staged = config({"tokens": 512}, {"name": "long", "tokens": 512, "batch": LONG})
    assert sharing_problem(staged.spans, 4) is None
    assert "stage long: 4 sequences a step cannot" in (sharing_problem(staged.spans, 8) or "")


def test_a_schedule_spans_its_stage_and_those_that_name_none() -> None:
    staged = config(
        {"tokens": 512 * 10},
        {"tokens": 512 * 10},
        {"tokens": 512 * 10, "schedule": {"name": "constant"}},
        {"tokens": 512 * 4, "schedule": {"name": "wsd", "decay_ratio": 1, "min_lr_ratio": 0}},
        schedule={"name": "cosine", "warmup_steps": 4, "min_lr_ratio": 0.1},
    )
    plain = config(schedule=staged.schedule, steps=20)
    factors = {
        step: lr_factor(one.schedule, step, one.steps)
        for span, one in staged.course
        for step in range(span.first + 1, span.last + 1)
    }
    assert factors == {
        **{step: lr_factor(plain.schedule, step, 20) for step in range(1, 21)},
        **dict.fromkeys(range(21, 31), 1.0),
        **{30 + step: 1 - step / 4 for step in range(1, 5)},
    }


@pytest.mark.parametrize(
    ("stages", "changes", "says"),
    [
        ([{"tokens": 512}, {}], {}, "stages.1.tokens\n  Field required"),
        ([{"tokens": 0}], {}, "greater than or equal to 1"),
        ([{"tokens": 1000}, {"tokens": 10}], {}, "stages.1 (2): its 10 tokens are already in"),
        ([{"tokens": 512}], {"tokens": 512}, "tokens 512 and stages are both given"),
        ([{"tokens": 512}], {"steps": 3}, "steps 3 and stages do not agree"),
        (
            [{"tokens": 512}],
            {"batch": {"sequences": 8, "sequence_length": 64, "stages": [{"after": 0.5, **LONG}]}},
            "stages and batch.stages are both given",
        ),
        (
            [{"tokens": 512, "name": "a"}, {"tokens": 512, "name": "a"}],
            {},
            "stages.1.name a is the name of another stage",
        ),
        (
            [{"tokens": 512}, {"tokens": 512, "batch": {"sequence_length": 48}}],
            {},
            "sequence length 48 does not divide the 512 tokens of a step; name batch.sequences",
        ),
        (
            [{"tokens": 512}, {"tokens": 480, "batch": {"sequence_length": 48, "sequences": 10}}],
            {},
            "stages.1 (2): batch: sequence length 48 does not divide the longest, 64",
        ),
        (
            [{"tokens": 512}, {"tokens": 512, "name": "long", "batch": {"micro_batch": 3}}],
            {},
            "stages.1 (long): batch.micro_batch 3 does not divide batch.sequences 8",
        ),
        (
            [{"tokens": 512}, {"tokens": 512, "batch": {"sequencs": 3}}],
            {},
            "stages.1.batch (2): sequencs: Extra inputs are not permitted",
        ),
        (
            [{"tokens": 512, "model": {"hidden_size": 9}}],
            {},
            "stages.0 (1): a stage cannot change model.hidden_size; it may change",
        ),
        (
            [{"tokens": 512}, {"tokens": 512, "model": {"max_sequence_length": 4096}}],
            {"model": "gpt2-tiny"},
            "stages.1 (2): a stage cannot change model.max_sequence_length",
        ),
        (
            [{"tokens": 512}, {"tokens": 512, "optimizer": {"lr": 1e-4}}],
            {"parts": {"optimizer": "mine:make"}},
            "stages.1 (2): a stage cannot change optimizer, since parts.optimizer is the project's",
        ),
        ([{"tokens": 512, "data": {"tokenizer": "x"}}], {}, "cannot change data.tokenizer"),
        (
            [{"tokens": 512}, {"tokens": 512, "optimizer": {"name": "muon"}}],
            {},
            "share the state of one",
        ),
        (
            [{"tokens": 512, "schedule": {"name": "wsd", "starts_after": 3}}],
            {},
            "schedule.starts_after cannot be given",
        ),
        (
            [{"tokens": 512, "data": {"corpus": {"kind": "text"}}}],
            {},
            "stages.0 (1): data: corpus.text.paths: Field required",
        ),
    ],
)
def test_stages_that_do_not_fit_are_refused_with_their_number(
    stages: list[dict[str, Any]], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        config(*stages, **changes)
