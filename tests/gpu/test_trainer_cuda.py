"""The trainer on a CUDA device: whole runs, killed and resumed, and checks that need a GPU."""

from __future__ import annotations

from pathlib import Path

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
    train_to_end,
    training,
)
from lehr_trainer.checkpointing.staging import HostCopy
from lehr_trainer.contract import layout
from lehr_trainer.planning.hardware import peak_flops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_run_resumed_on_cuda_is_bitwise_equal_to_an_undisturbed_one(
    tmp_path: Path, corpus: Path, compute: str
) -> None:
    changes = {"device": "cuda", "precision": {"compute": compute}}
    undisturbed = make_run(tmp_path / "undisturbed", corpus, **changes)
    train_to_end(undisturbed)
    run = make_run(tmp_path / "killed", corpus, **changes)
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    # The mock batch before the first step takes one, too.
    harm = sabotage(at_step=9, act=KILL, after=saved)
    with training(run, code=harm) as process:
        finish(process)
    train_to_end(run)
    assert records(run / "attempt-2", "resumed")[0]["step"] == 5
    want = undisturbed / "attempt-1"
    assert losses(run / "attempt-1", run / "attempt-2") == losses(want)
    assert different_tensors(run / "attempt-2", want) == []


def test_copy_of_the_state_is_complete_and_pinned() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    copy = HostCopy(device)
    state = {"model": {"a": torch.randn(1000, 333, device=device), "b": torch.tensor(2)}}
    first = copy.take(state)
    want = state["model"]["a"].cpu()
    state["model"]["a"].zero_()
    assert torch.equal(first["model"]["a"], want)
    assert first["model"]["a"].is_pinned()
    assert torch.equal(copy.take(state)["model"]["a"], torch.zeros(1000, 333))
    # Another layout takes the memory's place.
    assert torch.equal(copy.take({"model": {"c": want.to(device)}})["model"]["c"], want)


def test_mfu_and_memory_are_logged_for_a_known_device(tmp_path: Path, corpus: Path) -> None:
    run = make_run(tmp_path / "run", corpus, device="cuda", precision={"compute": "bf16"})
    train_to_end(run)
    values = records(run / "attempt-1", "metrics")[-1]["values"]
    name = torch.cuda.get_device_name()
    assert records(run / "attempt-1", "started")[0]["device"] == name
    assert ("mfu" in values) == (peak_flops(name, "bf16") is not None)
    assert 0 < values["memory/allocated_bytes"] <= values["memory/reserved_bytes"]
    assert values["memory/peak_bytes"] >= values["memory/allocated_bytes"]
    assert [r["step"] for r in records(run / "attempt-1", "metrics")] == list(range(1, 13))


def test_nan_on_cuda_stops_the_run_although_it_is_read_a_step_late(
    tmp_path: Path, corpus: Path
) -> None:
    run = make_run(
        tmp_path / "run",
        corpus,
        steps=100_000,
        device="cuda",
        optimizer={"lr": 1e18, "weight_decay": 0.0},
        grad_clip=0,
    )
    with training(run) as process:
        code, _ = finish(process)
    assert code == 1
    assert records(run / "attempt-1", "finished")[0]["cause"] == "nan_loss"
