"""The memory plan against what autograd keeps, and the table of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lehr_trainer.configs.loss import LOSSES, LossConfig, LossName
from lehr_trainer.configs.optimizer import BaseOptimizerConfig, MuonConfig, OptimizerConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.sizes import HeadSize, ParameterCounts
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.losses.variants import build_loss
from lehr_trainer.models import build_model
from lehr_trainer.models.module_map import blocks
from lehr_trainer.planning import hardware
from lehr_trainer.planning.hardware import GPUS, GpuType, find_gpu, peak_flops
from lehr_trainer.planning.layers import Kernels
from lehr_trainer.planning.memory import (
    activation_bytes_per_token,
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


def kept_bytes(model: torch.nn.Module, tokens: torch.Tensor, *, half: bool) -> int:
    """Count the bytes that autograd keeps, each storage once, without parameters and their copies."""
    lasting = itertools.chain(model.parameters(), model.buffers())
    weights = {tensor.untyped_storage().data_ptr() for tensor in lasting}
    shapes = {tuple(p.shape) for p in model.parameters()}
    shapes |= {tuple(reversed(shape)) for shape in shapes}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            kept[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
    ):
        hidden = model(tokens)
    assert hidden.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.nightly  # diagnostics/test_memory_trace.py compares the uncompiled ones.
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
def test_planned_activations_are_those_that_compiled_blocks_keep(
    preset: str, residual: torch.dtype
) -> None:
    """Inductor's partitioner chooses what is kept; this backend runs its graphs without kernels."""
    model_config = config(preset, 4, 96).model
    model = build_model(model_config, device="cpu", seed=0)
    model.residual_dtype = residual
    tokens = torch.randint(0, 512, (3, 96))
    for block in blocks(model):
        block.compile(backend="aot_eager_decomp_partition", dynamic=False)
    kept = kept_bytes(model, tokens, half=True)
    # The last norm is outside of the blocks, so it is not fused here.
    unfused = 0 if preset == "gpt2-tiny" else 4 * model_config.hidden_size * tokens.numel()
    planned = activation_bytes_per_token(
        model_config, Kernels(half=True, compiled=True, residual=residual.itemsize)
    )
    assert kept == pytest.approx(planned * tokens.numel() + unfused, rel=0.05)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_planned_activations_are_those_that_autograd_keeps(half: bool, kv_heads: int) -> None:
    values = {**MODEL_PRESETS["tiny"].values, "num_key_value_heads": kv_heads}
    model_config = LlamaConfig.model_validate({**values, "max_sequence_length": 128})
    model = build_model(model_config, device="cpu", seed=0)
    tokens = torch.randint(0, 512, (3, 96))
    measured = kept_bytes(model, tokens, half=half) / tokens.numel()
    planned = activation_bytes_per_token(model_config, Kernels(half=half, on_cpu=True))
    # In fp32 the last result is kept by the loss alone.
    assert measured == pytest.approx(planned, rel=0.02)
    # A CPU has no fused norm: each keeps the normalised values in fp32 besides.
    norms = 2 * model_config.num_hidden_layers + 1
    fused = activation_bytes_per_token(model_config, Kernels(half=half))
    assert planned - fused == norms * 4 * model_config.hidden_size


def most_held(act: Callable[[], None]) -> int:
    """Measure the most bytes that ``act`` holds at once, by the allocator's account."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        act()
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes))


@pytest.mark.parametrize(
    ("loss", "half"),
    [
        ({"name": "chunked", "chunk_mb": 2}, False),
        ({"name": "standard"}, False),
        ({"name": "standard"}, True),
        ({"name": "in_autocast"}, False),
    ],
    ids=str,
)
def test_planned_loss_bytes_match_the_measured_peak(loss: dict[str, Any], half: bool) -> None:
    """Only cases in which a CPU computes as a GPU does: its 16-bit products make fp32 copies."""
    words, width, tokens = 4096, 64, 512
    changes = {"loss": loss, "precision": {"compute": "bf16" if half else "fp32"}, "device": "cpu"}
    asked = config("tiny", 8, 64, **changes)
    planned = asked.loss.loss_bytes(HeadSize(tokens, width, words, half))

    operands = torch.bfloat16 if half else torch.float32
    loss_of = build_loss(asked.loss, operands, torch.device("cpu"))
    hidden = torch.randn(tokens, width, dtype=operands).requires_grad_()
    weight = (torch.randn(words, width) * 0.1).requires_grad_()
    targets = torch.randint(0, words, (tokens,))
    loss_of(hidden, weight, targets).backward()  # what is made once and kept
    hidden.grad = weight.grad = None
    measured = most_held(lambda: loss_of(hidden, weight, targets).backward())
    assert measured == pytest.approx(planned, rel=0.05)


def test_planned_optimizer_step_matches_the_published_peak() -> None:
    plan = training_memory(config("llama-1b", 16, 2048, device="cpu"))
    assert plan.stages["optimizer"] == pytest.approx(19.87e9, rel=1e-3)
    assert plan.weights + plan.optimizer == pytest.approx(14.90e9, rel=1e-3)


def test_fp32_activations_are_within_a_tenth_of_the_published_6_2_gb() -> None:
    plan = training_memory(config("llama-1b", 1, 2048, device="cpu"))
    assert plan.activations == pytest.approx(6.2e9, rel=0.1)


def test_mask_of_all_pairs_is_planned_where_a_kernel_takes_one() -> None:
    sequences, length = 4, 512

    def planned(device: str, backend: str, *, masked: bool) -> int:
        attention = {"backend": backend, "document_masking": masked}
        changes = {"device": device, "precision": {"compute": "bf16"}, "attention": attention}
        return training_memory(config("tiny", sequences, length, **changes)).activations

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
    whole = training_memory(config("llama-1b", 64, 2048))
    halves = training_memory(
        config(
            "llama-1b", 64, 2048, batch={"sequences": 64, "sequence_length": 2048, "micro_batch": 8}
        )
    )
    spread = training_memory(config("llama-1b", 64, 2048), world_size=8)
    assert halves.activations * 8 == whole.activations
    assert spread.activations == halves.activations
    assert halves.keeps_gradients
    assert spread.keeps_gradients
    assert not whole.keeps_gradients
    assert max(whole.stages.values()) == whole.peak


# --- a formula for every technique ------------------------------------------------------------


def test_each_optimizer_has_its_own_memory_formulas() -> None:
    union, *_ = get_args(OptimizerConfig)
    for optimizer in get_args(union):
        assert issubclass(optimizer, BaseOptimizerConfig)
        # Not inherited: an optimizer that extends another one states its own.
        assert {"state_bytes", "update_workspace_bytes"} <= vars(optimizer).keys(), optimizer


@pytest.mark.parametrize(
    ("batch_mb", "ranks", "nesterov", "traced"),
    [
        (256, 1, True, 82_591_765),
        (256, 1, False, 57_425_941),
        (1, 4, True, 41_959_446),
        (1, 8, True, 71_319_573),
        (256, 8, False, 58_736_661),
        (256, 2, False, 46_153_749),
    ],
)
def test_workspace_of_muon_is_that_of_traces_on_several_ranks(
    batch_mb: int, ranks: int, nesterov: bool, traced: int
) -> None:
    """Figures of MemTracker for the step of a Llama with these matrices."""
    matrices = ((512, 512, 6), (128, 512, 6), (2048, 512, 6), (512, 2048, 3))
    counts = ParameterCounts(0, 0, 0, 0, 0, matrices=matrices)
    muon = MuonConfig(batch_mb=batch_mb, nesterov=nesterov)
    assert muon.update_workspace_bytes(counts, ranks=ranks) == pytest.approx(traced, rel=0.001)
    alone = muon.model_copy(update={"distributed": False})
    assert alone.update_workspace_bytes(counts, ranks=ranks) == muon.update_workspace_bytes(counts)


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
