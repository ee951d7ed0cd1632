"""Campaigns as they are written: the rungs of a target, and what cannot be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from lehr.errors import SpecError
from lehr.specs import RunSpec, SweepSpec, load_spec
from lehr.specs.ladder import LEAST_STEPS, NoLadder, ladder
from lehr.specs.overrides import with_changes
from lehr.specs.sweep_expand import trials_at
from lehr_testing.campaigns import TARGET, campaign
from lehr_trainer.configs.presets import GPT2_SMALL, MODEL_PRESETS
from lehr_trainer.configs.train import ModelConfig
from lehr_trainer.planning.memory import memory_by_stage

LR = "train.optimizer.lr"


def run(model: Any, gpus: int = 8, **train: Any) -> RunSpec:
    own = {
        "model": model,
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 256, "sequence_length": 512, "micro_batch": 8},
        "tokens_per_parameter": 20,
        "schedule": {"warmup_steps": 100},
        **train,
    }
    data = {"name": "t", "train": own, "resources": {"gpus": gpus, "nodes": max(gpus // 8, 1)}}
    return RunSpec.model_validate({**data, "code": {"include": ["."]}})


@pytest.mark.parametrize("model", [*MODEL_PRESETS, GPT2_SMALL], ids=[*MODEL_PRESETS, "gpt2"])
def test_rungs_keep_the_proportions_of_the_target(model: Any) -> None:
    target = run(model)
    aim = target.own.model
    rungs = ladder(target)
    assert len({rung.width for rung in rungs}) >= 3
    assert [rung.flops for rung in rungs] == sorted(rung.flops for rung in rungs)
    room = max(one.peak for one in memory_by_stage(target.own, 8))
    for rung in rungs:
        changes = {**rung.set, **rung.point}
        made = RunSpec.model_validate(
            with_changes(target.model_dump(mode="json", exclude_unset=True), changes)
        )
        own = made.own
        shape = own.model
        ratio = shape.hidden_size / aim.hidden_size
        assert shape.head_size == aim.head_size
        assert shape.vocab_size == aim.vocab_size
        assert abs(shape.mlp_size / aim.mlp_size / ratio - 1) < 0.1
        assert shape.num_hidden_layers == max(2, round(aim.num_hidden_layers * ratio))
        per_parameter = own.total_tokens / rung.parameters
        assert min(abs(per_parameter / 20 - 1), abs(per_parameter / 5 - 1)) < 0.1
        assert own.steps >= LEAST_STEPS
        warmup = own.schedule.warmup(own.steps) / own.steps
        assert abs(warmup - 100 / target.own.steps) < 1.5 / own.steps
        peak = max(one.peak for one in memory_by_stage(own, made.resources.ranks))
        assert peak <= room or made.resources.gpus == 8
        assert (rung.width, rung.batch) == (shape.hidden_size, own.tokens_per_step)


def test_a_target_that_shares_its_weights_takes_no_more_gpus_than_it_needs() -> None:
    batch = {"sequences": 256, "sequence_length": 512, "micro_batch": 1}
    rungs = ladder(run("llama3-8b", gpus=64, parallel={"shard": "all"}, batch=batch))
    assert {rung.gpus for rung in rungs if rung.width < 1000} == {1}
    assert 1 < max(rung.gpus for rung in rungs) < 64
    alone = next(rung for rung in rungs if rung.gpus == 1)
    assert alone.set["train.parallel.shard"] == "none"


def test_a_model_of_ones_own_is_only_shortened() -> None:
    target = run("tiny", parts={"model": "mine:Model"}, tokens_per_parameter=None, steps=10_000)
    rungs = ladder(target)
    assert {rung.width for rung in rungs} == {128}
    lengths = [rung.tokens / target.own.total_tokens for rung in rungs]
    assert lengths == pytest.approx([1 / 256, 1 / 64, 1 / 16, 1 / 4], rel=0.1)


def test_where_the_batch_is_decided_smaller_ones_fit(tmp_path: Path) -> None:
    spec = campaign(decide=[LR, "train.batch.sequences"])
    assert spec.campaign is not None
    for rung in spec.campaign.rungs:
        assert "train.batch.sequences" not in rung.point
        micro_batch = rung.set["train.batch.micro_batch"]
        for sequences in (max(rung.sequences // 4, 1), rung.sequences * 4):
            point = {**rung.point, "train.batch.sequences": sequences // micro_batch * micro_batch}
            assert trials_at(spec, [point])


def test_target_is_a_file_beside_the_campaign_with_overrides_laid_over_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    corpus = "{kind: text, paths: [texts/a.txt]}"
    text = f"name: big\ntrain:\n  model: tiny\n  data: {{corpus: {corpus}, tokenizer: byte}}\n"
    text += "  batch: {sequences: 8, sequence_length: 64}\n  steps: 5000\n"
    (folder / "big.yaml").write_text(text)
    file = tmp_path / "campaign.yaml"
    file.write_text("target: runs/big.yaml\nname: c\nbudget: {gpu_hours: 1}\n")
    spec = load_spec(file, ["train.steps=8000", "budget.gpu_hours=3"])
    assert isinstance(spec, SweepSpec)
    assert spec.campaign is not None
    assert (spec.method, spec.run.own.steps, spec.campaign.gpu_hours) == ("campaign", 8000, 3.0)
    assert spec.run.own.data.corpus.paths == [str(folder / "texts/a.txt")]
    assert spec.campaign.decide[LR].min == spec.run.own.optimizer.lr / 16
    again = load_spec(spec.model_dump(mode="json", exclude_unset=True))
    assert again == spec


def test_dollars_become_hours_at_the_price_of_the_gpu() -> None:
    target = {**TARGET, "resources": {"gpus": 1, "gpu_type": "H100"}}
    given = campaign(budget={"dollars": 30, "price": 3}, target=TARGET).campaign
    table = campaign(budget={"dollars": 30}, target=target).campaign
    assert given is not None
    assert table is not None
    assert given.gpu_hours == 10
    assert table.gpu_hours == pytest.approx(30 / (table.price or 0))


def shape(**changes: Any) -> dict[str, Any]:
    return {**TARGET, "train": {**TARGET["train"], **changes}}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a metric to maximize": (
        {"metric": "task/mean"},
        "metric is task/mean, which is maximized; a campaign predicts a loss.",
    ),
    "dollars without a price": (
        {"budget": {"dollars": 10}},
        "budget.dollars needs the price of a GPU-hour, which is not known.",
    ),
    "two budgets": (
        {"budget": {"dollars": 10, "gpu_hours": 1}},
        "give either gpu_hours or dollars",
    ),
    "a target without a narrower version": (
        {"smallest_width": 128},
        "no ladder reaches it: with 4 heads in a width of 128 there is no narrower version",
    ),
    "a target that is too short": (
        {"target": shape(steps=2)},
        "no ladder reaches it: its 2 steps leave a smaller version less than 30",
    ),
    "a path that there is not": (
        {"decide": ["train.optimizer.rate"]},
        "train.optimizer.rate is not in the spec of a run.",
    ),
    "a path that is no number": (
        {"decide": ["train.optimizer.name"]},
        "train.optimizer.name is adamw in the target; a campaign decides a number",
    ),
    "a path that the ladder varies": (
        {"decide": ["train.model.hidden_size"]},
        "train.model.hidden_size cannot be decided: the campaign itself varies it.",
    ),
    "a path that follows from the steps": (
        {"decide": ["train.schedule.warmup_steps"], "target": shape(schedule={"warmup_steps": 9})},
        "train.schedule.warmup_steps cannot be decided: each rung has its own",
    ),
    "bounds the wrong way round": (
        {"decide": {LR: {"min": 1e-2, "max": 1e-3}}},
        "min 0.01 is not below max 0.001",
    ),
    "a rate with a bound of 0": (
        {"decide": {LR: {"min": 0, "max": 1e-3}}},
        "min 0 has no logarithm; it must be above 0.",
    ),
    "a target in stages": (
        {"target": shape(steps=None, stages=[{"tokens": "1M"}])},
        "it trains in stages (train.stages), which do not shorten alike",
    ),
    "a program": (
        {"target": {"trainer": {"script": "train.py"}}},
        "it is a program, whose shape and tokens are not known",
    ),
    "a file that is in no folder": (
        {"target": "big.yaml"},
        "target names a file, and this spec is in none.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), WRONG.values(), ids=WRONG)
def test_wrong_campaign_is_refused_with_the_reason(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        campaign(**changes)
    assert text in str(caught.value)


def test_every_model_kind_has_a_ladder_or_a_reason() -> None:
    narrow = TypeAdapter(ModelConfig).validate_python(
        {**MODEL_PRESETS["tiny"].values, "num_attention_heads": 1, "num_key_value_heads": 1}
    )
    with pytest.raises(NoLadder, match="with 1 head in a width of 128"):
        ladder(run(narrow.model_dump()))
