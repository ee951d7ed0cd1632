"""A training of several stages: ramp of the batch, longer sequences, another corpus and rate."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lehr_testing.assembled import assembled, recorded
from lehr_testing.corpora import documents, write_jsonl
from lehr_testing.specs import train as train_values
from lehr_trainer.checkpointing.state import data_position, model_tensors
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadData
from lehr_trainer.models import build_model_of
from lehr_trainer.models.llama import Llama
from lehr_trainer.train import Training

ENDS = {"ramp": 5, "main": 10, "long": 13, "anneal": 16}
STEP_TOKENS = {"ramp": 128, "main": 256, "long": 256, "anneal": 256}


def values(folder: Path) -> dict[str, Any]:
    corpora = [
        {"kind": "jsonl", "paths": [str(write_jsonl(folder / f"{n}.jsonl", documents(90, seed=n)))]}
        for n in (1, 2)
    ]
    document = train_values(folder, data={"corpus": corpora[0], "tokenizer": "byte"})
    del document["steps"]
    return document | {
        "checkpoint": {"every": 1, "keep_every": 1},
        "validation": {"tokens": 512, "share": 0.1, "every": 6},
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "optimizer": {"lr": 1e-3},
        "stages": [
            {"name": "ramp", "tokens": 5 * 128, "batch": {"sequences": 2}},
            {"name": "main", "tokens": 5 * 256, "batch": {"sequences": 4}},
            {
                "name": "long",
                "tokens": 3 * 256,
                "batch": {"sequence_length": 128, "micro_batch": 1},
                "model": {"rope_theta": 20_000.0},
                "loss": {"z_loss": 1e-4},
                "attention": {"document_masking": True},
            },
            {
                "name": "anneal",
                "tokens": 3 * 256,
                "data": {"corpus": corpora[1]},
                "optimizer": {"lr": 5e-4},
                "schedule": {"name": "wsd", "decay_ratio": 1.0, "min_lr_ratio": 0.0},
            },
        ],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("stages")
    (folder / "run").mkdir()
    training = assembled(folder / "run", values(folder))
    assert training.run().outcome == "completed"
    return training


def run_dir(training: Training) -> Path:
    assert training.events.path is not None
    return training.events.path.parents[1]


def rate(step: int) -> float:
    """The rate of each step, by the formulas: cosine over the first three stages, then linear."""
    if step <= 2:
        return 1e-3 * step / 2
    if step <= 13:
        return 1e-3 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 2) / 11)) / 2)
    return 5e-4 * (16 - step) / 3


def test_each_stage_has_its_rate_its_tokens_and_its_held_out_sets(whole: Training) -> None:
    metrics = recorded(whole, "metrics")
    assert [record["values"]["train/lr"] for record in metrics] == pytest.approx(
        [rate(step) for step in range(1, 17)], rel=1e-9
    )
    sizes = [STEP_TOKENS[name] for name in ENDS for _ in range(5 if name in "ramp main" else 3)]
    assert [record["tokens"] for record in metrics] == [
        sum(sizes[:step]) for step in range(1, len(sizes) + 1)
    ]
    assert ["train/z_loss" in record["values"] for record in metrics] == [
        10 < step <= 16 for step in range(1, 17)
    ]
    evaluated = {record["step"]: set(record["values"]) for record in recorded(whole, "evaluation")}
    val = {"val/loss", "val/bits_per_byte"}
    assert evaluated == {
        **dict.fromkeys((5, 6, 10), val),
        **dict.fromkeys((12, 13), val | {"val/long/loss", "val/long/bits_per_byte"}),
        16: val | {"val/anneal/loss", "val/anneal/bits_per_byte"},
    }
    assert len({record["validation_digest"] for record in recorded(whole, "evaluation")}) == 1


def test_end_of_a_stage_is_saved_and_kept(whole: Training) -> None:
    reasons = {record["step"]: record["reason"] for record in recorded(whole, "checkpoint")}
    assert [step for step, reason in reasons.items() if reason == "stage"] == [5, 10, 13]
    assert reasons[16] == "last"


def test_stage_has_the_positions_of_a_model_that_is_built_for_it(whole: Training) -> None:
    """Also the last one, which goes on with those of the third."""
    assert isinstance(whole.model, Llama)
    fresh = build_model_of(whole.config, device=torch.device("cpu"))
    assert whole.config.model.rope_theta == 20_000.0
    assert torch.equal(whole.model.rotary_cos, fresh.rotary_cos)


def copy_until(
    whole: Training,
    folder: Path,
    step: int,
    note: LaunchNote | None = None,
    document: dict[str, Any] | None = None,
) -> Training:
    """The next attempt of a run that was killed after the save of ``step``."""
    shutil.copytree(run_dir(whole), folder)
    for path in layout.checkpoints(folder / "attempt-1"):
        if (layout.checkpoint_step(path) or 0) > step:
            shutil.rmtree(path)
    return assembled(folder, document or values(folder.parent), note=note)


@pytest.mark.parametrize("step", [3, 5, 9, 10, 12, 13, 14])
def test_killed_run_goes_on_bitwise_in_the_middle_and_at_the_end_of_a_stage(
    whole: Training, step: int
) -> None:
    training = copy_until(whole, run_dir(whole).parent / f"killed-{step}", step)
    training.run()
    for kind, names in (("metrics", ("train/loss", "train/lr", "data/digest")), ("evaluation", ())):
        before = [one for one in recorded(whole, kind) if one["step"] > step]
        after = recorded(training, kind)
        assert [one["tokens"] for one in after] == [one["tokens"] for one in before]
        for one, other in zip(before, after, strict=True):
            for name in names or one["values"]:
                assert other["values"][name] == one["values"][name], (one["step"], name)
    for name, own in model_tensors(whole.model).items():
        assert torch.equal(own, model_tensors(training.model)[name]), name


def test_rewind_across_stages_skips_the_data_of_each_step(whole: Training) -> None:
    note = LaunchNote(skip_through=14)
    training = copy_until(whole, run_dir(whole).parent / "rewound", 9, note=note)
    training.loader.close()
    [saved] = (run_dir(whole) / "attempt-1" / layout.CHECKPOINTS).glob("step-*14")
    before = data_position(json.loads((saved / "state.json").read_text()))
    assert training.progress.position == before


def test_run_resumes_when_the_corpora_of_its_other_stages_are_away(whole: Training) -> None:
    """Of one that has ended, and of one that has not begun: their shards are there."""
    folder = run_dir(whole).parent
    for number in (1, 2):
        (folder / f"{number}.jsonl").rename(folder / f"{number}.away")
    try:
        training = copy_until(
            whole,
            folder / "away",
            12,
            document=yaml.safe_load((run_dir(whole) / layout.CONFIG).read_text()),
        )
        training.loader.close()
    finally:
        for number in (1, 2):
            (folder / f"{number}.away").rename(folder / f"{number}.jsonl")


def test_too_little_data_for_a_later_stage_shows_before_the_first_step(tmp_path: Path) -> None:
    document = values(tmp_path)
    path = write_jsonl(tmp_path / "short.jsonl", documents(12, words=5))
    document["stages"][3]["data"] = {"corpus": {"kind": "jsonl", "paths": [str(path)]}}
    document["stages"][3]["batch"] = {"sequence_length": 256, "sequences": 1}
    (tmp_path / "run").mkdir()
    with pytest.raises(BadData, match=r"stage anneal: the (corpus|held-out set) has"):
        assembled(tmp_path / "run", document)


def test_stage_with_a_mask_of_prompts_has_data_of_its_own(tmp_path: Path) -> None:
    turn = ("user", "assistant")
    chats = [{"messages": [{"role": r, "content": text} for r in turn]} for text in documents(90)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, chats)))
    corpus = {"kind": "chat", "template": "chatml", "paths": [str(tmp_path / "c.jsonl")]}
    stages = [
        {"tokens": 512},
        {"tokens": 512, "data": {"corpus": corpus}},
        {"name": "tune", "tokens": 512, "data": {"loss_mask": "prompts"}},
    ]
    (tmp_path / "run").mkdir()
    training = assembled(tmp_path / "run", values(tmp_path) | {"stages": stages})
    assert training.run().outcome == "completed"
    counted = [
        record["values"].get("train/loss_tokens") for record in recorded(training, "metrics")
    ]
    assert counted[:4] == [None] * 4
    assert all(0 < number < 200 for number in counted[4:])
    assert training.stage.scored["val/tune"].tokens < training.stage.scored["val"].tokens
    (tmp_path / "c.jsonl").unlink()
    document = yaml.safe_load((tmp_path / "run" / layout.CONFIG).read_text())
    resumed = assembled(tmp_path / "run", document)
    resumed.loader.close()
    assert [data.digest for data in resumed.course.data] == [
        data.digest for data in training.course.data
    ]
