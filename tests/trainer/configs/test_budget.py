"""A token budget becomes steps: by the published table, in every shape of config, never twice."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lehr_trainer.configs.budget import budget_tokens
from lehr_trainer.configs.schedule import ScheduleConfig, lr_factor
from lehr_trainer.configs.shapes import LlamaConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import parameter_counts

BASE: dict[str, Any] = {
    "model": "tiny",
    "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
    "batch": {"sequences": 4, "sequence_length": 64},
}


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({**BASE, **changes})


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        config(**changes)
    return {".".join(map(str, one["loc"])): one["msg"] for one in caught.value.errors()}


@pytest.mark.parametrize(
    ("parameters", "tokens"), [(400e6, 8.0e9), (1e9, 20.2e9), (10e9, 205.1e9), (67e9, 1.5e12)]
)
def test_twenty_tokens_a_parameter_is_near_the_table_of_hoffmann(
    parameters: float, tokens: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hoffmann et al. 2022 (arXiv:2203.15556), table 3: the optimal tokens of a model's size.
    class Counts:
        total = round(parameters)

    monkeypatch.setattr("lehr_trainer.planning.counts.parameter_counts", lambda _model: Counts)
    model = LlamaConfig.model_validate(config(steps=1).model.model_dump())
    steps = -(-budget_tokens(model, 20) // 2**20)
    assert steps * 2**20 == pytest.approx(tokens, rel=0.12)


@pytest.mark.parametrize("sequences", [4, 7])
def test_steps_are_the_fewest_that_reach_the_budget(sequences: int) -> None:
    total = parameter_counts(config(steps=1).model).total
    batch = {**BASE["batch"], "sequences": sequences}
    made = config(batch=batch, tokens_per_parameter=20)
    assert made.total_tokens >= 20 * total
    assert made.total_tokens - made.tokens_per_step < 20 * total


def test_all_parameters_count_the_embedding_too_and_a_tied_head_once() -> None:
    wide = {"preset": "tiny", "vocab_size": 4096}
    tied = config(model=wide, tokens_per_parameter=20)
    untied = config(model={**wide, "tie_embeddings": False}, tokens_per_parameter=20)
    # The embedding: 4,096 rows of 128.
    assert (untied.steps - tied.steps) * 256 == pytest.approx(20 * 4096 * 128, abs=256)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("2B", 2_000_000_000),
        ("2 B", 2_000_000_000),
        ("0.5G", 500_000_000),
        ("300M", 300_000_000),
        ("1.5e9", 1_500_000_000),
        ("12k", 12_000),
        ("1T", 10**12),
        ("1_000_000", 1_000_000),
        (2e9, 2_000_000_000),
        (7, 7),
    ],
)
def test_absolute_budget_is_a_number_or_a_text_with_a_unit(given: Any, tokens: int) -> None:
    made = config(tokens=given)
    assert made.tokens == tokens
    assert made.total_tokens >= tokens > made.total_tokens - made.tokens_per_step


@pytest.mark.parametrize(
    "given", ["0", 0, -5, "-2B", "2X", "2.5", "0.5k tokens", "1e99", "9999999T", "", "nan", 2.5]
)
def test_what_is_no_whole_number_of_tokens_is_one_error(given: Any) -> None:
    assert list(problems(tokens=given)) == ["tokens"]


def test_two_budgets_are_one_error() -> None:
    [(field, message)] = problems(tokens="1M", tokens_per_parameter=20).items()
    assert field == "steps"
    assert "tokens 1000000 and tokens_per_parameter 20 are both given; give only one" in message


def test_stages_of_the_sequence_length_leave_the_steps_as_they_are() -> None:
    stages = [{"after": 0.5, "sequence_length": 128}]
    staged = config(batch={**BASE["batch"], "stages": stages}, tokens_per_parameter=20)
    plain = config(tokens_per_parameter=20)
    assert staged.steps == plain.steps
    shapes = [staged.batch.at(step, staged.steps) for step in range(staged.steps)]
    assert sum(one.tokens_per_step for one in shapes) == staged.total_tokens


BUDGETS = [{"tokens_per_parameter": 20}, {"tokens": "3M"}]


@pytest.mark.parametrize("budget", BUDGETS)
def test_resolved_config_is_read_again_as_it_is(budget: dict[str, Any]) -> None:
    made = config(**budget)
    written = yaml.safe_load(yaml.safe_dump(made.model_dump(mode="json")))
    assert written["steps"] == made.steps
    assert TrainConfig.model_validate(written) == made


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_change_of_the_batch_gives_other_steps(budget: dict[str, Any], resolved: bool) -> None:
    made = config(**budget)
    if resolved:
        made = TrainConfig.model_validate(made.model_dump(mode="json"))
    written = made.model_dump(exclude_unset=True)
    assert "steps" not in written
    twice = {**written, "batch": {"sequences": 8, "sequence_length": 64}}
    steps = TrainConfig.model_validate(twice).steps
    assert made.steps / 2 <= steps <= made.steps / 2 + 1


def test_steps_that_contradict_the_budget_are_one_clear_error() -> None:
    made = config(tokens_per_parameter=20)
    [(field, message)] = problems(tokens_per_parameter=20, steps=7).items()
    assert field == "steps"
    assert f"steps 7 and tokens_per_parameter 20 do not agree: this budget takes {made.steps}" in (
        message
    )
    [message] = problems(tokens="1M", steps=7).values()
    assert "steps 7 and tokens 1000000 do not agree: this budget takes 3907 steps" in message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "steps"),
        ({"steps": None}, "steps"),
        ({"tokens_per_parameter": 0}, "tokens_per_parameter"),
        ({"tokens_per_parameter": "many"}, "tokens_per_parameter"),
        ({"tokens_per_parameter": 20, "model": "nix"}, "model"),
        ({"tokens": "1M", "model": "nix"}, "model"),
        ({"tokens": "1M", "batch": {"sequences": 4}}, "batch.sequence_length"),
        ({"tokens_per_parameter": 20, "batch": {"sequences": 4}}, "batch.sequence_length"),
        ({"tokens_per_parameter": 20, "schedule": {"warmup_steps": 10**9}}, ""),
    ],
)
def test_each_mistake_is_reported_once_at_its_field(changes: dict[str, Any], field: str) -> None:
    assert list(problems(**changes)) == [field]


def test_editors_ask_for_steps_or_the_budget() -> None:
    schema = TrainConfig.model_json_schema()
    budgets = ({"steps": 3}, {"tokens_per_parameter": 20}, {"tokens": "2B"}, {"tokens": 10**9})
    for steps, valid in (({}, False), *((one, True) for one in budgets)):
        model = config(steps=1).model.model_dump(mode="json")
        errors = list(
            jsonschema.Draft202012Validator(schema).iter_errors({**BASE, "model": model, **steps})
        )
        assert (errors == []) is valid, errors


def test_cosine_matches_its_formula() -> None:
    schedule = ScheduleConfig(warmup_steps=10, min_lr_ratio=0.1)
    assert [lr_factor(schedule, s, 110) for s in (1, 5, 10)] == [0.1, 0.5, 1.0]
    for step in (11, 35, 60, 109):
        want = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert lr_factor(schedule, step, 110) == pytest.approx(want)
    assert lr_factor(schedule, 110, 110) == pytest.approx(0.1)


def test_wsd_has_warmup_plateau_and_decay() -> None:
    schedule = ScheduleConfig(name="wsd", warmup_steps=10, decay_steps=20, min_lr_ratio=0.0)
    assert {lr_factor(schedule, s, 100) for s in range(10, 81)} == {1.0}
    assert [lr_factor(schedule, s, 100) for s in (81, 90, 99, 100)] == pytest.approx(
        [0.95, 0.5, 0.05, 0.0]
    )
    sqrt = schedule.model_copy(update={"decay_shape": "sqrt"})
    assert lr_factor(sqrt, 85, 100) == pytest.approx(0.5)


def test_constant_stays_at_the_peak() -> None:
    schedule = ScheduleConfig(name="constant", warmup_ratio=0.1)
    assert [lr_factor(schedule, s, 100) for s in (1, 10, 50, 100)] == [0.1, 1.0, 1.0, 1.0]


@given(
    st.sampled_from(["cosine", "constant", "wsd"]),
    st.integers(1, 400), st.integers(0, 50), st.integers(0, 50), st.floats(0, 1),
)  # fmt: skip
def test_factor_is_between_0_and_1_and_never_rises_after_warmup(
    name, steps, warmup, decay, least
) -> None:
    schedule = ScheduleConfig(
        name=name,
        warmup_steps=warmup,
        min_lr_ratio=least,
        decay_steps=decay if name == "wsd" else None,
    )
    factors = [lr_factor(schedule, s, steps) for s in range(1, steps + 1)]
    assert all(0 <= f <= 1 for f in factors)
    after = factors[warmup:]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(after))


def test_a_restart_runs_the_new_schedule_over_the_steps_that_remain() -> None:
    fresh = ScheduleConfig(warmup_steps=5)
    restarted = ScheduleConfig(warmup_steps=5, starts_after=300)
    assert [lr_factor(restarted, 300 + s, 400) for s in range(1, 101)] == [
        lr_factor(fresh, s, 100) for s in range(1, 101)
    ]


def test_restart_can_warm_up_from_the_old_rate() -> None:
    old = ScheduleConfig(warmup_steps=0)
    left_at = lr_factor(old, 200, 200)
    new = ScheduleConfig(name="wsd", warmup_steps=10, warmup_from=left_at, starts_after=200)
    assert lr_factor(new, 200, 400) == pytest.approx(left_at)
    assert lr_factor(new, 205, 400) == pytest.approx((left_at + 1) / 2)
    assert lr_factor(new, 210, 400) == 1.0


def test_no_warmup_starts_at_the_peak() -> None:
    assert lr_factor(ScheduleConfig(warmup_steps=0, name="constant"), 1, 10) == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup_steps": 20}, "warmup takes 20 steps, but it has only 10"),
        ({"name": "wsd", "warmup_steps": 6, "decay_steps": 6}, "take 12 steps, but it has only 10"),
        ({"starts_after": 10}, "starts_after 10 is not before the run's last step, 10"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**values).check_fits(10)


def test_steps_and_ratio_together_are_refused() -> None:
    with pytest.raises(ValidationError, match="decay_steps or decay_ratio"):
        ScheduleConfig(name="wsd", decay_steps=1, decay_ratio=0.1)
