"""Each technique trains when it is switched on in the YAML file, and the default does not change.

tests/trainer/test_assemble.py checks that switches which change no loss have an effect at all.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.trainer import (
    EAGER,
    KILL,
    different_tensors,
    final_state,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    series,
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
TORCHAO = {"name": "adamw8bit", "library": "torchao", "lr": 1e-3}
MUON = {"name": "muon", "lr": 0.01, "embedding_lr": 1e-3}

SAME = {
    # These change how the loss is computed, not what it is.
    "standard loss": {"loss": {"name": "standard"}},
    "torch's chunked loss": {"loss": {"name": "torch_chunked"}},
    "small chunks": {"loss": {"chunk_mb": 1}},
    "math attention": {"attention": {"backend": "math"}},
    "recomputed blocks": {"activation_checkpointing": {"policy": "block"}},
    "recomputed swiglu": {"activation_checkpointing": {"policy": "swiglu", "every": 2}},
    "compiled blocks": {"compile": {"scope": "block"}},
    "two micro-batches": {"batch": {"sequences": 4, "sequence_length": 64, "micro_batch": 2}},
    "skip-step": {"skip_step": {"enabled": True, "window": 4, "sigmas": 1000.0}},
}
OTHER = {
    # These change what is trained, or in which numbers.
    "Muon": {"optimizer": MUON},
    "warmup, stable, decay": {"schedule": {"name": "wsd", "warmup_steps": 2, "decay_steps": 4}},
    "a stable embedding": {"model": {**LLAMA, "stable_embedding": True}},
    "cross-entropy in autocast": {
        "loss": {"name": "in_autocast"},
        "precision": {"compute": "bf16"},
    },
    "a loss in bf16": {"loss": {"name": "bf16_softmax"}, "precision": {"compute": "bf16"}},
    "fp16": {"precision": {"compute": "fp16"}},
    "emulated FP8": {"precision": {"fp8": {"recipe": "tensorwise", "emulate": True}}},
    "GPT-2": {"model": GPT2},
    "GPT-2 with masked documents": {"model": GPT2, "attention": {"document_masking": True}},
    "masked documents": {"attention": {"document_masking": True}},
    # Rehearsed before the first step, since its shapes change.
    "longer sequences at the end": {
        "batch": {
            "sequences": 4,
            "sequence_length": 64,
            "stages": [{"after": 0.5, "sequence_length": 128}],
        }
    },
}
NEEDS = {"emulated FP8": "torchao"}


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


@pytest.mark.parametrize(
    "switch",
    [
        # test_compiling.py compiles at each change, and test_assemble.py has the switch.
        pytest.param(one, marks=pytest.mark.nightly) if one == "compiled blocks" else one
        for one in SAME
    ],
)
def test_compute_settings_do_not_change_the_loss(
    switch: str, tmp_path: Path, plain: Path, corpus: Path, data: Path
) -> None:
    attempt = trained(tmp_path, corpus, data, **SAME[switch])
    assert losses(attempt) == pytest.approx(losses(plain), rel=1e-4)


@pytest.mark.parametrize("switch", OTHER)
def test_training_settings_change_the_loss(
    switch: str, tmp_path: Path, plain: Path, corpus: Path, data: Path
) -> None:
    if switch in NEEDS and importlib.util.find_spec(NEEDS[switch]) is None:
        pytest.skip(f"{NEEDS[switch]} is not installed")
    attempt = trained(tmp_path, corpus, data, **OTHER[switch])
    got = losses(attempt)
    assert got[STEPS] < got[1]
    assert got[STEPS] != losses(plain)[STEPS]
    assert records(attempt, "finished")[0]["outcome"] == "completed"


# --- killed and taken up again ---------------------------------------------------------------

RESUMED = {
    # Wide enough: both keep the moments of small matrices in 32 bits.
    "bitsandbytes": {"optimizer": BITSANDBYTES, "model": WIDE},
    "torchao": {"optimizer": TORCHAO, "model": WIDE},
    "muon": {"optimizer": MUON},
    # Its scale begins so high that it has to come down, and is state.
    "fp16": {"precision": {"compute": "fp16", "loss_scale": {"initial": 2.0**40}}},
    "skip-step": {"skip_step": {"enabled": True, "window": 4, "sigmas": 0.5}},
}


@pytest.mark.parametrize(
    "switch",
    [
        # bitsandbytes keeps its moments in 8 bits too; skipping has state as fp16's scale has.
        pytest.param(one, marks=pytest.mark.nightly) if one in {"torchao", "skip-step"} else one
        for one in RESUMED
    ],
)
def test_killed_run_resumes_bitwise(switch: str, tmp_path: Path, corpus: Path, data: Path) -> None:
    if switch in {"bitsandbytes", "torchao"} and importlib.util.find_spec(switch) is None:
        pytest.skip(f"{switch} is not installed")
    eager = EAGER if switch == "torchao" else ""
    steps = 40 if switch == "fp16" else STEPS
    changes = {**RESUMED[switch], "steps": steps, "checkpoint": {"every": 5}}
    whole = trained(tmp_path, corpus, data, code=eager, **changes)
    run = make_run(tmp_path / "killed", corpus, **changes)
    # Skipped steps do not count if the host can see them.
    at_step = 9 if switch != "skip-step" else 6
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    harm = sabotage(at_step=at_step, act=KILL, after=saved)
    with training(run, data=data, code=eager + harm) as process:
        code, _ = finish(process)
    assert code == -9
    train_to_end(run, data=data, code=eager)
    first, second = run / "attempt-1", run / "attempt-2"
    assert records(second, "resumed"), "it started over"
    assert losses(first, second) == losses(whole)
    assert not different_tensors(second, whole)
    if switch in {"bitsandbytes", "torchao"}:
        kept = final_state(second).values()
        assert torch.uint8 in {tensor.dtype for tensor in kept}, "no moment is in 8 bits"
    if switch == "skip-step":
        assert series("train/skipped_steps", whole)[STEPS] > 0, "there was nothing to skip"
    assert judgements(second).keys() == judgements(whole).keys()
    for name, value in judgements(whole).items():
        assert torch.equal(judgements(second)[name], value), name


def judgements(attempt: Path) -> dict[str, torch.Tensor]:
    newest = layout.checkpoints(attempt)[-1]
    return read_tensors(newest, read_manifest(newest), "updates")


# --- diagnostics and profiles ------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_run_uses_deterministic_algorithms(
    deterministic: bool, tmp_path: Path, corpus: Path, data: Path
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
    trained(tmp_path, corpus, data, code=code, steps=1, deterministic=deterministic, threads=2)
    on = [True, False, False, ":4096:8", "Ring", 2]
    assert json.loads(found.read_text()) == (
        on if deterministic else [False, False, True, None, None, 2]
    )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: Path) -> Path:
    """An attempt without compression."""
    folder = tmp_path_factory.mktemp("two-ranks")
    return trained(folder, corpus, data, ranks=2, parallel={"static_graph": True})


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_ranks_that_compress_gradients_train_alike(
    compression: str, tmp_path: Path, two_ranks: Path, corpus: Path, data: Path
) -> None:
    how = {"compression": compression, "static_graph": True}
    attempt = trained(tmp_path, corpus, data, ranks=2, parallel=how)
    assert losses(attempt)[1] == losses(two_ranks)[1]
    assert losses(attempt) != losses(two_ranks), "nothing was rounded"
    assert losses(attempt) == pytest.approx(losses(two_ranks), rel=2e-3)
