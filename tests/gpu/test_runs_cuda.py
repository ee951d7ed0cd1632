"""Whole runs on GPUs, one for each technique: sound, and near the plain run or the run on one GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.specs import text_corpus
from lehr_testing.trainer import (
    KILL,
    different_tensors,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    series,
    train_to_end,
    training,
)
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
SIZE: dict[str, Any] = {
    "device": "cuda",
    # Heads of 64, and sizes that FP8's matrix products take.
    "model": {
        "preset": "tiny",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "batch": {"sequences": 16, "sequence_length": 256, "micro_batch": 8},
    "steps": 60,
    "validation": {"tokens": 4096, "share": 0.1, "every": 30},
    "checkpoint": {"every": 30},
    "diagnostics": {
        "quality_every": 20,
        "quality_tokens": 1024,
        "sample": {"every": 30, "prompt": "the lehr ", "tokens": 16},
    },
    "precision": {"compute": "bf16"},
    "compile": {"scope": "none"},
    "deterministic": False,
}
BLOCK = {"scope": "block", "fullgraph": True}
MASKS = {"document_masking": True}
KERNELS = ("flash", "efficient", "cudnn", "math", "fa3", "fa4")
LOSSES = ("standard", "torch_chunked", "liger", "cce", "cce_fp32", "cce_kahan")

NEAR: dict[str, dict[str, Any]] = {
    **{f"attention {name}": {"attention": {"backend": name}} for name in KERNELS},
    **{f"loss {name}": {"loss": {"name": name}} for name in LOSSES},
    "fp16": {"precision": {"compute": "fp16"}},
    "fp32": {"precision": {"compute": "fp32", "tf32": False}},
    "blocks recomputed": {"activation_checkpointing": {"policy": "block"}},
    "blocks compiled": {"compile": BLOCK},
    "model compiled": {"compile": {"scope": "model"}},
    "CUDA graphs": {"compile": {**BLOCK, "mode": "reduce-overhead"}},
    "recomputed and compiled": {"activation_checkpointing": {"policy": "block"}, "compile": BLOCK},
    "fa3 compiled": {"attention": {"backend": "fa3"}, "compile": {"scope": "block"}},
    "captured for Nsight": {"profile": {"tool": "nsys", "wait": 2, "warmup": 1, "active": 2}},
}
"""Changes of the plain run that compute the same; the losses may differ by 0.05 nats."""
EIGHT_BIT: dict[str, dict[str, Any]] = {
    **{
        f"8-bit {library}": {"optimizer": {"name": "adamw8bit", "library": library, "lr": 1e-3}}
        for library in ("bitsandbytes", "torchao")
    },
    **{
        f"FP8 {recipe}": {
            "precision": {"compute": "bf16", "fp8": {"recipe": recipe}},
            "compile": {"scope": "none" if recipe == "te_delayed" else "block"},
        }
        for recipe in ("tensorwise", "rowwise", "te_delayed")
    },
}
"""Changes that round to 8 bits; the losses may differ by 0.2 nats."""
OTHER: dict[str, dict[str, Any]] = {
    "masks": {"attention": MASKS},
    "masks compiled": {"attention": MASKS, "compile": {"scope": "block"}},
    "Muon": {"optimizer": {"name": "muon", "lr": 0.02}},
}
"""Changes that train otherwise, so that no losses are compared."""
TECHNIQUES = [
    *((changes, 0.05) for changes in NEAR.values()),
    *((changes, 0.2) for changes in EIGHT_BIT.values()),
    *((changes, math.inf) for changes in OTHER.values()),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_corpus(tmp_path_factory.mktemp("corpus") / "texts")


def attempt_of(run: Path) -> Path:
    """Train to the end by the trainer's command line; raise BadConfig if it refuses to."""
    with training(run, command_line=True, data=run.parent / "data") as process:
        code, output = finish(process, within_s=800)
    attempts = layout.attempts(run)
    assert attempts, output
    for end in records(attempts[-1], "finished"):
        if end.get("cause") == "bad_config":
            raise BadConfig(end["message"])
    assert code == 0, output
    return attempts[-1]


def require_sound(attempt: Path) -> None:
    curve = losses(attempt)
    assert all(math.isfinite(loss) for loss in curve.values())
    assert curve[max(curve)] < curve[min(curve)] - 0.1
    checks = [r["values"] for r in records(attempt, "metrics") if "raw_ce_fp32" in r["values"]]
    assert len(checks) >= 3
    assert all(abs(c["raw_ce_fp32"] - c["loss_same_tokens"]) < 0.05 for c in checks)
    assert records(attempt, "sample")
    assert records(attempt, "evaluation")
    assert layout.checkpoints(attempt)


def gap(one: dict[int, float], other: dict[int, float]) -> float:
    assert one.keys() == other.keys()
    return max(abs(loss - other[step]) for step, loss in one.items())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    return attempt_of(make_run(tmp_path_factory.mktemp("plain") / "run", corpus, **SIZE))


def test_plain_run_is_sound(plain: Path) -> None:
    require_sound(plain)


@pytest.mark.parametrize(("changes", "bound"), TECHNIQUES, ids=[*NEAR, *EIGHT_BIT, *OTHER])
def test_run_with_a_technique_is_sound_and_near_the_plain_run(
    tmp_path: Path, corpus: Path, plain: Path, changes: dict[str, Any], bound: float
) -> None:
    attempt = attempt_of(make_run(tmp_path / "run", corpus, **{**SIZE, **changes}))
    require_sound(attempt)
    compiled = changes.get("compile", {}).get("scope", "none")
    assert records(attempt, "started")[0]["compile"] == compiled
    if bound < math.inf:
        assert gap(losses(attempt), losses(plain)) < bound


EXACT: dict[str, Any] = {
    "device": "cuda",
    "precision": {"compute": "fp32", "tf32": False},
    "deterministic": True,
    "steps": 10,
    "checkpoint": {"every": 4},
    "batch": {"sequences": 8, "sequence_length": 256, "micro_batch": 2},
}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_two_gpus_train_like_one_and_resume_bitwise_after_a_killed_rank(
    tmp_path: Path, corpus: Path
) -> None:
    one, two, killed = (make_run(tmp_path / n, corpus, **EXACT) for n in ("one", "two", "killed"))
    train_to_end(one, command_line=True)
    train_to_end(two, ranks=2, command_line=True)
    want, got = layout.attempts(one)[0], layout.attempts(two)[0]
    assert gap(losses(got), losses(want)) < 2e-3
    norms = series("train/grad_norm", want)
    assert gap(series("train/grad_norm", got), norms) < 2e-2 * max(norms.values())
    saved = layout.checkpoint_dir(layout.attempt_dir(killed, 1), EXACT["checkpoint"]["every"])
    harm = sabotage(at_step=6, act=KILL, ranks=(1,), after=saved)
    with training(killed, ranks=2, code=harm, command_line=True) as process:
        code, _ = finish(process)
    assert code != 0
    train_to_end(killed, ranks=2, command_line=True)
    first, second = layout.attempts(killed)
    assert losses(first, second) == losses(got)
    assert different_tensors(second, got) == []
