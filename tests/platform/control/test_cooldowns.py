"""Cooldowns: their steps, the closed form of their rate, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lehr.analysis.compare import differences
from lehr.control.cooldowns import Cooldown, cooldown
from lehr.errors import LehrError
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC
from lehr_trainer.configs.schedule import lr_factor

TOKENS_PER_STEP = 256
WSD = ["train.steps=1000", "train.schedule.name=wsd", "train.optimizer.lr=1e-3"]


@dataclass(frozen=True)
class Point:
    step: int
    attempt: int = 1
    path: str = ""


POINTS = [Point(step) for step in (10, 500, 900, 950)]


def cooled(tokens: int | str, at: int | None, *changes: str, **options) -> Cooldown:
    return cooldown(load_spec(RUN_SPEC, [*WSD, *changes]), POINTS, tokens, at=at, **options)


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 1 - 0.5), ("sqrt", 1 - 0.5**0.5)], ids=["linear", "sqrt"]
)
@pytest.mark.parametrize("to", [0.0, 0.1])
def test_rate_follows_its_closed_form_from_the_first_step_to_the_last(shape, middle, to):
    made = cooled(100 * TOKENS_PER_STEP, 500, shape=shape, to=to)
    train = made.spec.own
    assert (made.steps, made.tokens, train.steps) == (100, 25_600, 600)
    assert train.total_tokens == 600 * TOKENS_PER_STEP

    def rate(step: int) -> float:
        return train.optimizer.lr * lr_factor(train.schedule, step, train.steps)

    first = 1 - (0.01 if shape == "linear" else 0.01**0.5)
    for step, height in ((501, first), (550, middle), (600, 0.0)):
        assert rate(step) == pytest.approx(1e-3 * (to + (1 - to) * height), rel=1e-9), step
    assert (made.rate, made.last_rate) == (1e-3, rate(600))
    assert made.alone.own.steps == 100


def test_three_budgets_differ_in_their_length_only():
    made = [cooled(tokens, 900) for tokens in ("25.6k", 51_000, "0.1M")]
    assert [one.spec.name for one in made] == [
        f"one-cooldown-{tokens}" for tokens in ("25.6k", "51k", "100k")
    ]
    assert [one.steps for one in made] == [100, 200, 391], "whole steps, never fewer tokens"
    found = differences([one.spec.model_dump(mode="json") for one in made])
    assert [one.path for one in found if one.factor] == ["train.steps"]
    assert [one.path for one in found] == ["name", "train.steps", "train.tokens"]


def test_trunk_with_a_budget_and_lengths_keeps_its_length_at_each_step():
    lengths = "train.batch.stages=[{after: 0.2, sequence_length: 128}, {after: 0.8, sequence_length: 256}]"
    made = cooled("51.2k", 500, lengths, "train.steps=null", "train.tokens_per_parameter=0.3")
    assert made.spec.own.batch.changes(made.spec.own.steps) == (200,)
    assert made.spec.own.tokens_per_parameter is None
    assert made.alone.own.batch.sequence_length == 128


@pytest.mark.parametrize(
    ("step", "rate"), [(950, 5.5e-4), (10, 5e-4)], ids=["decaying", "warming up"]
)
def test_checkpoint_below_the_peak_needs_consent_and_then_begins_at_its_rate(step, rate):
    muon = ["train.optimizer={name: muon, lr: 1e-3, embedding_lr: 2e-3}"]
    with pytest.raises(LehrError) as e:
        cooled("1M", step, *muon)
    assert e.value.message.startswith(f"at step {step} the learning rate of one is {rate:.2g}, ")
    assert e.value.message.endswith("% of its peak 0.001, by its schedule wsd.")
    assert e.value.hint is not None
    assert e.value.hint.startswith("Its last checkpoint at the peak is at step 900. To cool down")
    made = cooled("1M", step, *muon, below_peak=True)
    optimizer = made.spec.own.optimizer
    assert (made.rate, optimizer.lr) == pytest.approx((rate, rate))
    assert optimizer.embedding_lr == pytest.approx(2 * rate)
    assert optimizer.adjust_lr == "original"


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ("255", {}, "tokens is 255; a cooldown of one needs at least the 256 tokens of a step"),
        ("2X", {}, "tokens is 2X"),
        (True, {}, "tokens is True"),
        ("1M", {"to": 1.0}, "to is 1; it must be at least 0 and below 1"),
        ("1M", {"at": 600}, "one has no checkpoint at step 600."),
        ("1M", {"name": "two words"}, "name"),
    ],
)
def test_wrong_argument_is_refused_by_name_and_value(tokens, options, message):
    with pytest.raises(LehrError, match=message):
        cooled(tokens, options.pop("at", 500), **options)


def test_rate_that_is_zero_has_no_cooldown():
    with pytest.raises(LehrError, match="is 0, 0% of its peak"):
        cooldown(
            load_spec(RUN_SPEC, ["train.schedule.min_lr_ratio=0"]),
            [Point(100)],
            "1M",
            below_peak=True,
        )


def test_program_of_the_users_own_is_refused():
    spec = load_spec({"name": "a", "trainer": {"module": "mine.train"}})
    with pytest.raises(LehrError, match="a trains with a program of its own"):
        cooldown(spec, POINTS, "1M")


TRUNK = [
    {"name": "short", "tokens": 400 * 256, "data": {"corpus": {"kind": "text", "paths": ["/web"]}}},
    {"name": "wide", "tokens": 500 * 512, "batch": {"sequences": 8}, "optimizer": {"lr": 2e-3}},
    {"name": "long", "tokens": 200 * 512, "batch": {"sequence_length": 256}, "schedule": "cosine"},
]


def of_stages(tokens: int | str, at: int, **options) -> Cooldown:
    trunk = load_spec(RUN_SPEC, {"train.stages": TRUNK, "train.schedule.name": "wsd"})
    return cooldown(trunk, POINTS, tokens, at=at, **options)


def test_three_cooldowns_of_stages_end_them_at_the_checkpoint():
    made = [of_stages(tokens * 512, 500) for tokens in (50, 100, 200)]
    for one, steps in zip(made, (50, 100, 200), strict=True):
        train = one.spec.own
        assert [(s.span.name, s.span.last) for s in train.course] == [
            ("short", 400),
            ("wide", 500),
            ("cooldown", 500 + steps),
        ]
        assert (one.rate, one.steps, one.tokens) == (2e-3, steps, steps * 512)
        own = train.course[-1].config
        assert lr_factor(own.schedule, 500 + steps // 2, train.steps) == pytest.approx(0.5)
        assert own.batch.longest_sequence == 256, "the block of the stage that was left out"
        assert one.alone.own.steps == steps
    found = differences([one.spec.model_dump(mode="json") for one in made])
    assert {one.path for one in found if one.factor} == {"train.stages.cooldown.tokens"}


def test_cooldown_of_stages_begins_at_the_rate_of_its_stage():
    with pytest.raises(LehrError) as e:
        of_stages("1M", 950)
    assert e.value.message.startswith("at step 950 the learning rate of one is 0.0017")
    assert e.value.hint is not None
    assert e.value.hint.startswith("Its last checkpoint at the peak is at step 500.")
    made = of_stages("1M", 950, below_peak=True)
    own = made.spec.own.course[-1].config
    assert own.optimizer.lr == made.rate < 2e-3
    assert [stage.span.last for stage in made.spec.own.course[:-1]] == [400, 900, 950]
    points = [Point(step) for step in (960,)]
    again = cooldown(made.spec, points, "1M", below_peak=True)
    assert [stage.span.name for stage in again.spec.own.course][-2:] == ["cooldown", "cooldown-960"]
    with pytest.raises(LehrError, match="needs at least the 512 tokens of a step"):
        of_stages(300, 500)
