"""Each technique trains when it is switched on in the YAML file, and the default does not change.

tests/trainer/test_assemble.py checks that switches which change no loss have an effect at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.trainer import (
    KILL,
    different_tensors,
    final_state,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    train_to_end,
    training,
)
from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.contract import layout

STEPS = 12

GPT2 = {"preset": "gpt2-tiny", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {
    "preset": "tiny",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
WIDE = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}
BITSANDBYTES = {"name": "adamw8bit", "lr": 1e-3}
MUON = {"name": "muon", "lr": 0.01, "embedding_lr": 1e-3}

BF16 = {"compute": "bf16"}
FP8 = {"recipe": "tensorwise", "emulate": True}
SHAPE = {"sequences": 4, "sequence_length": 64}

SAME = {
    # These change how the loss is computed, not what it is.
    "standard loss, math attention, recomputed blocks, two micro-batches, skip-step": {
        "loss": {"name": "standard"},
        "attention": {"backend": "math"},
        "activation_checkpointing": {"policy": "block"},
        "batch": {**SHAPE, "micro_batch": 2},
        "skip_step": {"enabled": True, "window": 4, "sigmas": 1000.0},
    },
    "torch's chunked loss, recomputed swiglu": {
        "loss": {"name": "torch_chunked"},
        "activation_checkpointing": {"policy": "swiglu", "every": 2},
    },
}
OTHER = {
    # These change what is trained, or in which numbers.
    "warmup, stable, decay, a stable embedding, cross-entropy in autocast": {
        "schedule": {"name": "wsd", "warmup_steps": 2, "decay_steps": 4},
        "model": {**LLAMA, "stable_embedding": True},
        "loss": {"name": "in_autocast"},
        "precision": BF16,
    },
    "GPT-2 with masked documents": {"model": GPT2, "attention": {"document_masking": True}},
    # Its shapes change, so it is rehearsed before the first step.
    "emulated FP8, a loss in bf16, longer sequences at the end": {
        "precision": {**BF16, "fp8": FP8},
        "loss": {"name": "bf16_softmax"},
        "batch": {**SHAPE, "stages": [{"after": 0.5, "sequence_length": 128}]},
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: Path) -> Path:
    """The attempt of the default config."""
    run = make_run(tmp_path_factory.mktemp("plain"), corpus, steps=STEPS)
    train_to_end(run, data=data)
    return run / "attempt-1"


def trained(
    folder: Path, corpus: Path, data: Path, *, ranks: int = 1, code: str = "", **changes: Any
) -> Path:
    run = make_run(folder / "run", corpus, **{"steps": STEPS, **changes})
    train_to_end(run, ranks=ranks, data=data, code=code)
    return run / "attempt-1"


@pytest.mark.parametrize("switch", SAME)
def test_compute_settings_do_not_change_the_loss(
    switch: str, tmp_path: Path, plain: Path, corpus: Path, data: Path
) -> None:
    attempt = trained(tmp_path, corpus, data, **SAME[switch])
    assert losses(attempt) == pytest.approx(losses(plain), rel=1e-4)


@pytest.mark.parametrize("switch", OTHER)
def test_training_settings_change_the_loss(
    switch: str, tmp_path: Path, plain: Path, corpus: Path, data: Path
) -> None:
    if "FP8" in switch:
        pytest.importorskip("torchao")
    attempt = trained(tmp_path, corpus, data, **OTHER[switch])
    got = losses(attempt)
    assert got[STEPS] < got[1]
    assert got[STEPS] != losses(plain)[STEPS]
    assert records(attempt, "finished")[0]["outcome"] == "completed"


# --- killed and taken up again ---------------------------------------------------------------

RESUMED = {
    # Wide enough: it keeps the moments of small matrices in 32 bits.
    "bitsandbytes": {"optimizer": BITSANDBYTES, "model": WIDE},
    "muon": {"optimizer": MUON},
    # Its scale begins so high that it has to come down, and is state.
    "fp16": {"precision": {"compute": "fp16", "loss_scale": {"initial": 2.0**40}}, "steps": 40},
}


@pytest.mark.parametrize("switch", RESUMED)
def test_killed_run_resumes_bitwise(switch: str, tmp_path: Path, corpus: Path, data: Path) -> None:
    if switch == "bitsandbytes":
        pytest.importorskip("bitsandbytes")
    changes = {**RESUMED[switch], "checkpoint": {"every": 5}}
    whole = trained(tmp_path, corpus, data, **changes)
    run = make_run(tmp_path / "killed", corpus, **{"steps": STEPS, **changes})
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    with training(run, data=data, code=sabotage(at_step=9, act=KILL, after=saved)) as process:
        code, _ = finish(process)
    assert code == -9
    train_to_end(run, data=data)
    first, second = run / "attempt-1", run / "attempt-2"
    assert records(second, "resumed"), "it started over"
    assert losses(first, second) == losses(whole)
    assert not different_tensors(second, whole)
    if switch == "bitsandbytes":
        kept = final_state(second).values()
        assert torch.uint8 in {tensor.dtype for tensor in kept}, "no moment is in 8 bits"
    assert judgements(second).keys() == judgements(whole).keys()
    for name, value in judgements(whole).items():
        assert torch.equal(judgements(second)[name], value), name


def judgements(attempt: Path) -> dict[str, torch.Tensor]:
    newest = layout.checkpoints(attempt)[-1]
    return read_tensors(newest, read_manifest(newest), "updates")


# --- diagnostics and profiles ------------------------------------------------------------------


def test_deterministic_run_uses_deterministic_algorithms(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    found = tmp_path / "found.json"
    code = f"""
import atexit, json, os, pathlib, torch
torch.backends.cudnn.benchmark = True
for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"):
    os.environ.pop(name, None)

def tell():
    pathlib.Path({str(found)!r}).write_text(json.dumps([
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        os.environ.get("NCCL_ALGO"),
        torch.get_num_threads(),
    ]))

atexit.register(tell)
"""
    trained(tmp_path, corpus, data, code=code, steps=1, deterministic=True, threads=2)
    assert json.loads(found.read_text()) == [True, False, False, ":4096:8", "Ring", 2]


def test_ranks_that_compress_gradients_train_alike(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    exact, rounded = (
        losses(trained(tmp_path / how, corpus, data, ranks=2, parallel={"compression": how}))
        for how in ("none", "bf16")
    )
    assert rounded[1] == exact[1]
    assert rounded != exact, "nothing was rounded"
    assert rounded == pytest.approx(exact, rel=2e-3)
