"""Ranks that divide a model among them train as one rank does, and resume each other's checkpoints."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
import yaml

from lehr_testing.trainer import (
    KILL,
    final_state,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    sabotage_save,
    series,
    train_to_end,
    training,
)
from lehr_trainer.contract import layout

BATCH = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
TWO_NODES = "import os\nos.environ['LOCAL_WORLD_SIZE'] = '2'\n"
MUON = {
    "name": "muon",
    "coefficients": "polar_express",
    "normuon_beta": 0.9,
    "qkv_heads": 1,
    "cautious_weight_decay": True,
    "weight_decay_schedule": "cosine",
}
EIGHT_BITS = {  # Only rows of a multiple of 256 values are divided.
    library: {
        "optimizer": {"name": "adamw8bit", "library": library},
        "model": {"preset": "tiny", "hidden_size": 256, "intermediate_size": 512},
    }
    for library in ("bitsandbytes", "torchao")
}
# torchao compiles its step, for a minute; the numbers are the same.
CODE = {"torchao": "import torch\ntorch.compiler.set_stance('force_eager')\n"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw in bf16": {"precision": {"compute": "bf16"}},
    "muon": {"optimizer": {"name": "muon"}},
    "muon of today": {"optimizer": MUON},
    **EIGHT_BITS,
}
TOLERANCES = {"adamw": 2e-5, "adamw in bf16": 1e-3, "muon": 2e-4, "muon of today": 5e-4}
TOLERANCES |= dict.fromkeys(EIGHT_BITS, 2e-5)
"""Of a loss. Muon computes in bf16, and its ranks divide the matrices in other ways. In bf16 the
rounding of a gradient norm moves products to the next number of 8 bits."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: Path) -> dict[str, Path]:
    """One rank's trainings, by the name of the optimizer."""
    attempts = {}
    for name, changes in OPTIMIZERS.items():
        run = make_run(tmp_path_factory.mktemp("whole") / name, corpus, batch=BATCH, **changes)
        train_to_end(run, data=data, code=CODE.get(name, ""))
        attempts[name] = run / "attempt-1"
    return attempts


def same(*attempts: Path, as_in: Path, tolerance: float = 2e-5) -> None:
    """The attempts of a run have the data, losses, gradient norms and evaluation of another run."""
    assert series("data/digest", *attempts) == series("data/digest", as_in)
    assert losses(*attempts) == pytest.approx(losses(as_in), abs=tolerance)
    norms = series("train/grad_norm", *attempts)
    assert norms == pytest.approx(series("train/grad_norm", as_in), rel=max(1e-3, 20 * tolerance))
    values = records(attempts[-1], "evaluation")[-1]["values"]
    assert values == pytest.approx(records(as_in, "evaluation")[-1]["values"], abs=tolerance)


# The other test has every kind with AdamW.
@pytest.mark.parametrize(
    ("optimizer", "shard", "ranks", "code"),
    [
        ("muon of today", "all", 2, ""),
        ("muon of today", "node", 4, TWO_NODES),
        ("adamw in bf16", "all", 2, ""),
        ("bitsandbytes", "all", 2, ""),
        ("torchao", "all", 2, ""),
        pytest.param("adamw in bf16", "node", 4, TWO_NODES, marks=pytest.mark.nightly),
        pytest.param("adamw in bf16", "optimizer", 2, "", marks=pytest.mark.nightly),
        pytest.param("muon", "all", 2, "", marks=pytest.mark.nightly),
        pytest.param("muon", "node", 4, TWO_NODES, marks=pytest.mark.nightly),
        pytest.param("muon", "optimizer", 2, "", marks=pytest.mark.nightly),
        pytest.param("adamw", "optimizer", 2, "", marks=pytest.mark.nightly),
        pytest.param("adamw", "all", 4, "", marks=pytest.mark.nightly),
        pytest.param("adamw", "node", 4, TWO_NODES, marks=pytest.mark.nightly),
    ],
)
def test_sharded_ranks_train_as_one(
    whole: dict[str, Path], tmp_path: Path, corpus: Path, data: Path, optimizer: str, shard: str,
    ranks: int, code: str,
) -> None:  # fmt: skip
    changes = {**OPTIMIZERS[optimizer], "parallel": {"shard": shard}}
    run = make_run(tmp_path / "run", corpus, batch=BATCH, **changes)
    train_to_end(run, ranks=ranks, data=data, code=code + CODE.get(optimizer, ""))
    same(run / "attempt-1", as_in=whole[optimizer], tolerance=TOLERANCES[optimizer])
    mine, theirs = final_state(run / "attempt-1"), final_state(whole[optimizer])
    assert mine.keys() == theirs.keys()
    for key, tensor in mine.items():
        assert tensor.shape == theirs[key].shape, key


EVERY_KIND = [
    ("all", 4, ""),
    ("none", 1, ""),
    ("node", 4, TWO_NODES),
    ("none", 2, ""),
    ("optimizer", 2, ""),
]
AND_BACK = [("all", 2, ""), ("none", 1, ""), ("optimizer", 2, "")]


@pytest.mark.parametrize(
    ("optimizer", "turns"),
    [
        ("adamw", EVERY_KIND),
        pytest.param("muon of today", EVERY_KIND, marks=pytest.mark.nightly),
        ("bitsandbytes", AND_BACK),
        ("torchao", AND_BACK),
    ],
)
def test_any_ranks_resume_what_others_saved(
    tmp_path: Path, corpus: Path, data: Path, optimizer: str, turns: list[tuple[str, int, str]]
) -> None:
    changes = {
        **OPTIMIZERS[optimizer],
        "batch": BATCH,
        "average": {"last": 3, "every": 1},
        "checkpoint": {"every": 2},
        "diagnostics": {"parts_every": 3, "quality_every": 4},
        "compile": {"scope": "none"},
        "activation_checkpointing": {"policy": "block"},
    }
    undisturbed = make_run(tmp_path / "undisturbed", corpus, **changes)
    own = CODE.get(optimizer, "")
    train_to_end(undisturbed, data=data, code=own)
    run = make_run(tmp_path / "run", corpus, **changes)
    for number, (shard, ranks, code) in enumerate(turns):
        config = run / layout.CONFIG
        values = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump({**values, "parallel": {"shard": shard}}))
        if number == len(turns) - 1:
            train_to_end(run, ranks=ranks, data=data, code=code + own)
            break
        saved = layout.checkpoint_dir(run / f"attempt-{number + 1}", 2 * number + 2)
        harm = sabotage(at_step=3, act=KILL, ranks=(ranks - 1,), after=saved)
        with training(run, ranks=ranks, data=data, code=code + own + harm) as process:
            assert finish(process)[0] != 0
    attempts = layout.attempts(run)
    steps = [records(attempt, "resumed")[0]["step"] for attempt in attempts[1:]]
    assert steps == [2 * number for number in range(1, len(turns))]
    same(*attempts, as_in=undisturbed / "attempt-1", tolerance=TOLERANCES[optimizer])
    parts = [
        {
            (record["step"], name): value
            for attempt in group
            for record in records(attempt, "metrics")
            for name, value in record["values"].items()
            if name.startswith("params/")
        }
        for group in (attempts, [undisturbed / "attempt-1"])
    ]
    assert len(parts[0]) == 36  # Three figures of three parts at four steps.
    assert parts[0] == pytest.approx(parts[1], rel=max(1e-3, 20 * TOLERANCES[optimizer]))


@pytest.mark.parametrize("call", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_rank_killed_in_its_part_of_a_save_leaves_the_checkpoint_before(
    whole: dict[str, Path], tmp_path: Path, corpus: Path, data: Path, rank: int, call: int
) -> None:
    changes = {"parallel": {"shard": "all"}, "checkpoint": {"every": 2, "asynchronous": False}}
    run = make_run(tmp_path / "run", corpus, batch=BATCH, **changes)
    torn = layout.checkpoint_dir(run / "attempt-1", 4)
    harm = indent(sabotage_save(torn, call=call, act=KILL), "    ")
    code = f"import os\nif os.environ['RANK'] == '{rank}':\n{harm}"
    with training(run, ranks=2, data=data, code=code) as process:
        assert finish(process)[0] != 0
    assert torn.with_name(torn.name + ".tmp").is_dir(), "it was not killed in the save"
    assert not torn.exists()
    train_to_end(run, ranks=2, data=data)
    assert records(run / "attempt-2", "resumed")[0]["step"] == 2
    same(*layout.attempts(run), as_in=whole["adamw"])


SLOW_LOADER = """
import os, time
if os.environ["RANK"] == "1":
    from lehr_trainer.data.loader import Loader
    batch = Loader.batch
    Loader.batch = lambda *given: time.sleep(0.03) or batch(*given)
"""
SLOW_FORWARD = """
import os, time
if os.environ["RANK"] == "0":
    from lehr_trainer.train import TrainStep
    loss_of = TrainStep.loss_of
    def longer(*given):
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return loss_of(*given)
    TrainStep.loss_of = longer
"""


@pytest.mark.parametrize(
    ("shard", "code", "slow"), [("none", SLOW_LOADER, 1), ("all", SLOW_FORWARD, 0)]
)
def test_rank_for_which_the_others_wait_is_the_slowest_in_the_records(
    tmp_path: Path, corpus: Path, data: Path, shard: str, code: str, slow: int
) -> None:
    run = make_run(tmp_path / "slow", corpus, batch=BATCH, parallel={"shard": shard})
    train_to_end(run, ranks=2, data=data, code=code)
    steps = [record["values"] for record in records(run / "attempt-1", "metrics")]
    assert [step["ranks/slowest"] for step in steps].count(slow) >= 10
    median = sorted(
        step["ranks/max_own_time_s"] - step["ranks/median_own_time_s"] for step in steps
    )[6]
    assert median > 0.04, "it is slower by 0.06 s in each step of two micro-batches"
    figures = ("step_time_s", "own_time_s", "data_wait_s", "memory_bytes")
    assert {name for name in steps[0] if name.startswith("ranks/")} == {
        "ranks/slowest",
        *(f"ranks/{which}_{name}" for name in figures for which in ("max", "median", "min")),
    }


TECHNIQUES: dict[str, dict[str, Any]] = {
    "compiled": {"compile": {"scope": "block"}},
    "joint-products": {"compile": {"scope": "block", "joint_products": True}},
    "mup": {"model": {"preset": "tiny", "parametrization": "mup", "base_width": 64}},
    "masks": {"attention": {"document_masking": True}},
    "fp16": {"precision": {"compute": "fp16"}},
    "fp8": {"precision": {"fp8": {"recipe": "tensorwise", "emulate": True}}},
    "skip-step": {"skip_step": {"enabled": True, "window": 2}},
    "stages": {
        "steps": None,
        "stages": [{"tokens": 1024}, {"tokens": 1024, "batch": {"sequences": 8}}],
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", TECHNIQUES)
def test_each_technique_trains_sharded_as_under_ddp(
    tmp_path: Path, corpus: Path, data: Path, name: str
) -> None:
    attempts = []
    for shard in ("none", "all"):
        changes = {"batch": BATCH, "parallel": {"shard": shard}, **TECHNIQUES[name]}
        run = make_run(tmp_path / shard, corpus, **changes)
        train_to_end(run, ranks=2, data=data)
        attempts.append(run / "attempt-1")
    same(attempts[1], as_in=attempts[0], tolerance=5e-5)


IN_FP32 = "from lehr_trainer.models import fp8\nfp8._METHODS.clear()\n"
"""FP8 weights are gathered in fp32 and cast by each rank afterwards."""
COMPARED = {"train/loss", "train/grad_norm", "raw_ce_fp32", "loss_same_tokens"}


@pytest.mark.parametrize(
    ("shard", "ranks", "code"),
    [
        ("all", 3, ""),  # Their rows are not equally many.
        pytest.param("optimizer", 2, "", marks=pytest.mark.nightly),
        pytest.param("node", 4, TWO_NODES, marks=pytest.mark.nightly),
    ],
)
def test_weights_cast_before_they_are_gathered_train_bitwise_as_cast_afterwards(
    tmp_path: Path, corpus: Path, data: Path, shard: str, ranks: int, code: str
) -> None:
    """Also what no FP8 computes, and after a resume; in between are passes outside training."""
    changes: dict[str, Any] = {
        "steps": 6,
        "batch": {**BATCH, "sequences": 12},
        "parallel": {"shard": shard},
        "precision": {"compute": "bf16", "fp8": {"recipe": "tensorwise", "emulate": True}},
        "compile": {"scope": "none"},
        "average": {"last": 2, "every": 1},
        "checkpoint": {"every": 2},
        "diagnostics": {"parts_every": 1, "quality_every": 2},
        "validation": {"tokens": 512, "share": 0.1, "every": 2},
    }
    afterwards = make_run(tmp_path / "afterwards", corpus, **changes)
    train_to_end(afterwards, ranks=ranks, data=data, code=code + IN_FP32)
    run = make_run(tmp_path / "before", corpus, **changes)
    saved = layout.checkpoint_dir(run / "attempt-1", 4)
    harm = sabotage(at_step=5, act=KILL, ranks=(ranks - 1,), after=saved)
    with training(run, ranks=ranks, data=data, code=code + harm) as process:
        assert finish(process)[0] != 0
    train_to_end(run, ranks=ranks, data=data, code=code)

    def values(kind: str, *attempts: Path) -> dict[tuple[int, str], float]:
        return {
            (record["step"], name): value
            for attempt in attempts
            for record in records(attempt, kind)
            for name, value in record["values"].items()
            if name in COMPARED or name.startswith(("val/", "params/"))
        }

    assert {name for _, name in values("metrics", run / "attempt-2")} > COMPARED
    for kind in ("metrics", "evaluation"):
        assert values(kind, *layout.attempts(run)) == values(kind, afterwards / "attempt-1")
    mine, theirs = final_state(run / "attempt-2"), final_state(afterwards / "attempt-1")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
