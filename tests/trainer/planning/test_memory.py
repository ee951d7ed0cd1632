"""The memory plan against what autograd keeps, and the table of GPUs."""

from __future__ import annotations

from typing import get_args

import pytest

from lehr_trainer.configs.loss import LOSSES, LossConfig, LossName
from lehr_trainer.configs.optimizer import BaseOptimizerConfig, OptimizerConfig
from lehr_trainer.configs.shapes import MODEL_PRESETS
from lehr_trainer.configs.sizes import HeadSize
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.planning import hardware
from lehr_trainer.planning.hardware import GPUS, GpuType, find_gpu, peak_flops
from lehr_trainer.planning.memory import (
    training_memory,
)


def config(model: str, sequences: int, length: int, **changes: object) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": model,
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": sequences, "sequence_length": length},
            "steps": 1,
            **changes,
        }
    )


def test_planned_optimizer_step_matches_the_published_peak() -> None:
    plan = training_memory(config("llama-1b", 16, 2048, device="cpu"))
    assert plan.stages["optimizer"] == pytest.approx(19.87e9, rel=1e-3)
    resting = plan.phases["resting"]
    assert resting.parameters + resting.optimizer == pytest.approx(14.90e9, rel=1e-3)


def test_fp32_activations_are_within_a_tenth_of_the_published_6_2_gb() -> None:
    plan = training_memory(config("llama-1b", 1, 2048, device="cpu"))
    assert plan.kept == pytest.approx(6.2e9, rel=0.1)


def test_mask_of_all_pairs_is_planned_where_a_kernel_takes_one() -> None:
    sequences, length = 4, 512

    def planned(device: str, backend: str, *, masked: bool) -> int:
        attention = {"backend": backend, "document_masking": masked}
        changes = {"device": device, "precision": {"compute": "bf16"}, "attention": attention}
        return training_memory(config("tiny", sequences, length, **changes)).kept

    layers = LlamaConfig(**MODEL_PRESETS["tiny"].values).num_hidden_layers
    # Each layer keeps the mask in the operands' type; all share the bool one.
    pairs = sequences * length**2
    for device, backend, bytes_of_a_pair in (
        ("cpu", "auto", 1 + 2 * layers),
        ("cuda", "efficient", 1 + 2 * layers),
        ("cuda", "auto", 0),
        # Its mask is added to scores that it keeps anyway.
        ("cuda", "math", 1),
    ):
        with_masks, without = (planned(device, backend, masked=on) for on in (True, False))
        assert with_masks - without == pairs * bytes_of_a_pair, (device, backend)


def test_smaller_micro_batches_and_more_ranks_take_less() -> None:
    fp32 = {"precision": {"compute": "fp32"}}  # Without 16-bit copies of weights, which stay.
    batch = {"sequences": 64, "sequence_length": 2048, "micro_batch": 8}
    whole = training_memory(config("llama-1b", 64, 2048, **fp32))
    halves = training_memory(config("llama-1b", 64, 2048, **fp32, batch=batch))
    spread = training_memory(config("llama-1b", 64, 2048, **fp32), world_size=8)
    assert halves.kept * 8 == whole.kept
    assert spread.kept == halves.kept
    in_forward = [bool(plan.phases["forward"].gradients) for plan in (halves, spread, whole)]
    assert in_forward == [True, True, False]


# --- a formula for every technique ------------------------------------------------------------


def test_each_optimizer_has_its_own_memory_formulas() -> None:
    union, *_ = get_args(OptimizerConfig)
    for optimizer in get_args(union):
        assert issubclass(optimizer, BaseOptimizerConfig)
        # Not inherited: an optimizer that extends another one states its own.
        assert {"state_bytes", "update_workspace_bytes"} <= vars(optimizer).keys(), optimizer


def test_an_optimizer_without_formulas_cannot_be_made() -> None:
    class Lion(BaseOptimizerConfig):
        lr: float = 1e-4

    with pytest.raises(TypeError, match="state_bytes"):
        Lion()


def test_each_loss_has_a_memory_formula() -> None:
    assert LOSSES.keys() == set(get_args(LossName))
    head = HeadSize(tokens=2048, hidden=64, vocabulary=4096, half=True)
    for name in LOSSES:
        assert LossConfig(name=name).loss_bytes(head) > head.operand_bytes


# --- GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "bf16", "gib"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989.4e12, 79.1),
        ("NVIDIA H100 PCIe", "H100", 756e12, 79.1),
        ("NVIDIA H100 NVL", "H100", 835.5e12, 93.0),
        ("NVIDIA H200", "H200", 989.4e12, 139.8),
        ("NVIDIA A100-SXM4-80GB", "A100", 312e12, 79.1),
        ("NVIDIA A100-SXM4-40GB", "A100", 312e12, 39.4),
        ("NVIDIA A10", "A10", 125e12, 22.0),
        ("NVIDIA A10G", "A10G", 70e12, 22.0),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2e12, 23.6),
    ],
)
def test_a_driver_name_finds_its_gpu(name: str, kind: str, bf16: float, gib: float) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.kind, gpu.memory_bytes) == (kind, round(gib * 2**30))
    assert peak_flops(name, "bf16") == bf16


def test_a_variant_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ada = GpuType("RTX 6000 Ada", "RTX 6000 ADA", 48 * 10**9, {}, 0.8)
    monkeypatch.setattr(hardware, "GPUS", (*GPUS, ada))
    assert find_gpu("NVIDIA RTX 6000 Ada Generation") is ada
    assert find_gpu("Quadro RTX 6000") is None
    older = GpuType("RTX 6000", "RTX 6000", 24 * 10**9, {}, 0.5)
    monkeypatch.setattr(hardware, "GPUS", (*GPUS, older, ada))
    assert find_gpu("Quadro RTX 6000") is older
    assert find_gpu("NVIDIA RTX 6000 Ada Generation") is ada
    assert find_gpu("NVIDIA RTX 6000 Ada Laptop GPU") is None


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "NVIDIA A1000",
        "NVIDIA H300",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "",
    ],
)
def test_an_unknown_device_has_no_peak_and_so_no_mfu(name: str) -> None:
    assert find_gpu(name) is None
    assert peak_flops(name, "bf16") is None


def test_unsupported_arithmetic_has_no_peak() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None


def test_peaks_are_dense() -> None:
    for gpu in GPUS:
        if "fp8" in gpu.peak_flops:
            assert gpu.peak_flops["fp8"] == pytest.approx(2 * gpu.peak_flops["bf16"], rel=0.03)
