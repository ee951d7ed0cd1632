"""The rows of the tables: each is a training of one config."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lehr_trainer.configs.execution import BACKENDS
from lehr_trainer.configs.loss import LOSSES
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import Size

LARGE_GB = 100.0
"""Memory of a GPU from which the rows for large ones run: those of an H200."""

_BF16 = {"compute": "bf16", "tf32": True}
_FP32 = {"compute": "fp32", "tf32": False}
_BLOCK = {"activation_checkpointing": {"policy": "block"}}
_SWIGLU = {"activation_checkpointing": {"policy": "swiglu"}}
_EAGER = {"compile": {"scope": "none"}}
_COMPILED = {"compile": {"scope": "block"}}
_GRAPHS = {"compile": {"scope": "block", "mode": "reduce-overhead"}}
_LADDER: dict[str, dict[str, Any]] = {
    "+ torch.compile by block": _COMPILED,
    "+ TF32": {"precision": {"tf32": True}},
    "+ bf16": {"precision": {"compute": "bf16"}},
    "+ fused attention": {"attention": {"backend": "auto"}},
    "+ fused AdamW": {"optimizer": {"fused": True}},
    "+ chunked loss": {"loss": {"name": "chunked"}},
    "+ one micro-batch": {"batch": {"micro_batch": None}},
    "+ CUDA graphs": _GRAPHS,
    "+ FP8": {"precision": {"fp8": {"recipe": "tensorwise"}}},
}
"""What each rung changes. The first are those of the GPT-2 134M study (docs/reference-runs.md)."""
_MUON: dict[str, dict[str, Any]] = {
    "Polar Express": {"coefficients": "polar_express"},
    "NorMuon": {"normuon_beta": 0.95},
    "one head at a time": {"qkv_heads": 1},
    "cautious decay": {"cautious_weight_decay": True},
}
"""The changes of Muon that cost time or memory."""
_POLICIES = ("none", "embedding", "norms", "attention", "swiglu", "block, every 2nd layer", "block")


@dataclass(frozen=True)
class BenchRow:
    """A row before it has figures."""

    table: str
    name: str
    config: dict[str, Any]
    """A whole ``TrainConfig`` as JSON."""
    ranks: int = 1
    """On how many GPUs, or gloo processes of a CPU, it trains; its batch is shared among them."""
    skip: str = ""
    """Reason why it is not measured here; then no process is started."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.name}"


@dataclass(frozen=True)
class Hardware:
    """What a machine offers to the rows."""

    device: str
    """cpu or cuda."""
    gpus: int = 1
    """How many ranks can train."""
    memory_gb: float = math.inf
    """Of a GPU."""

    @classmethod
    def here(cls, device: str) -> Hardware:
        """Describe this machine. A CPU stands for two GPUs of any memory, in a rehearsal."""
        if device != "cuda":
            return cls(device, gpus=2)
        memory = torch.cuda.get_device_properties(0).total_memory
        return cls(device, torch.cuda.device_count(), memory / 1e9)


class _Plan(NamedTuple):
    table: str
    name: str
    sequences: int
    """Of a step."""
    changes: dict[str, Any]
    micro_batch: int | None = None
    ranks: int = 1
    least_gb: float = 0.0
    """Memory of the GPU below which it is not tried."""
    length: float = 1.0
    """Sequence length, as a multiple of the size's."""


def rows(
    size: Size, hardware: Hardware, tables: Collection[str], *, eager: bool = False
) -> Iterator[BenchRow]:
    """Yield the rows of these tables, in order; at a tiny size, equal ones once.

    On CUDA a row is in bf16 and compiled by block, on a CPU in fp32 and eager, unless it is about
    that. ``eager``: compile none.
    """
    seen: set[tuple[str, str]] = set()
    for plan in _all(size, hardware.device, eager=eager):
        if plan.table not in tables or plan[:2] in seen:
            continue
        seen.add(plan[:2])
        skip = _why_not(plan.changes, hardware.device, eager=eager)
        if plan.ranks > hardware.gpus:
            skip = f"needs {plan.ranks} GPUs; this machine has {hardware.gpus}"
        elif plan.least_gb > hardware.memory_gb:
            skip = (
                f"for GPUs of {plan.least_gb:.0f} GB or more; this one has {hardware.memory_gb:.0f}"
            )
        config = {} if skip else _config(plan, size, hardware.device, eager=eager)
        yield BenchRow(plan.table, plan.name, config, plan.ranks, skip)


def _config(plan: _Plan, size: Size, device: str, *, eager: bool) -> dict[str, Any]:
    """Make the row's whole config.

    Raises:
        pydantic.ValidationError: its changes do not go together.
    """
    length = max(8, int(size.sequence_length * plan.length))
    model = size.model
    if model.get("max_sequence_length", length) < length:
        model = {**model, "max_sequence_length": length}
    on_cuda = device == "cuda"
    values: dict[str, Any] = {
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": plan.sequences, "sequence_length": length},
        "steps": 1_000_000,
        "schedule": {"name": "constant", "warmup_steps": 0},
        "precision": _BF16 if on_cuda else _FP32,
        **(_COMPILED if on_cuda and not eager else _EAGER),
        "device": device,
    }
    values = _merged(values, {"batch": {"micro_batch": plan.micro_batch}})
    values = _merged(values, plan.changes)
    return TrainConfig.model_validate({"model": model, **values}).model_dump(mode="json")


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {
        key: {**values.get(key, {}), **change} if isinstance(change, dict) else change
        for key, change in changes.items()
    }
    return {**values, **merged}


def _why_not(changes: dict[str, Any], device: str, *, eager: bool) -> str:
    """Return why a row would show nothing on this machine; empty if it would.

    What the trainer itself refuses is not listed: its error becomes the row's note.
    """
    compiling, precision = changes.get("compile", {}), changes.get("precision", {})
    if eager and compiling.get("scope", "none") != "none":
        return "left out by --eager"
    in_tf32 = precision.get("tf32") and precision.get("compute") == "fp32"
    if device == "cuda":
        too_old = in_tf32 and torch.cuda.get_device_capability() < (8, 0)
        return "TF32 needs compute capability 8.0 (Ampere)" if too_old else ""
    if compiling.get("mode", "default") != "default":
        return "CUDA graphs and autotuning are for a GPU"
    if "fp16" in precision.values() or ("bf16" in precision.values() and not _cpu_has_bf16()):
        return "this CPU would emulate 16-bit arithmetic, at seconds a step"
    if in_tf32:
        return "TF32 is a mode of NVIDIA's matrix units; a CPU has none"
    return ""


def _cpu_has_bf16() -> bool:
    cpu = torch.cpu
    return cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()  # noqa: SLF001


def _all(size: Size, device: str, *, eager: bool) -> Iterator[_Plan]:
    whole = size.sequences
    # On a GPU not all that is compared here fits with the whole batch in one forward pass.
    quarter, eighth = max(1, whole // 4), max(1, whole // 8)
    if device != "cuda":
        quarter = eighth = whole
    yield from _ladder(whole, device, eager=eager)
    yield from _targets(whole)
    yield from _ranks(whole)
    yield from _techniques(whole, quarter, eighth)
    yield from _attention(whole, quarter, eighth)
    for count in sorted({max(1, whole // divisor) for divisor in (64, 16, 4, 2, 1)}):
        yield _Plan("batch", str(count), count, _BLOCK)


def _ladder(whole: int, device: str, *, eager: bool) -> Iterator[_Plan]:
    """Yield the rungs; one that does not apply here is left out of those above it."""
    added: dict[str, Any] = {
        "batch": {"micro_batch": max(1, whole // 4)},
        "precision": _FP32,
        "attention": {"backend": "math"},
        "loss": {"name": "standard"},
        "optimizer": {"name": "adamw", "fused": False},
        **_EAGER,
    }
    yield _Plan("ladder", "fp32, eager, math attention", whole, added)
    for name, change in _LADDER.items():
        rung = _merged(added, change)
        yield _Plan("ladder", name, whole, rung)
        if not _why_not(rung, device, eager=eager):
            added = rung


def _targets(whole: int) -> Iterator[_Plan]:
    """Yield ways to the same sequences a step; each also in FP8, otherwise unchanged."""
    half, quarter, eighth = (max(1, whole // divisor) for divisor in (2, 4, 8))
    ways: list[tuple[str, int, dict[str, Any], float]] = [
        ("nothing recomputed", quarter, {}, 0.0),
        ("nothing recomputed", eighth, {}, 0.0),
        ("swiglu recomputed", quarter, _SWIGLU, 0.0),
        ("blocks recomputed", whole, _BLOCK, 0.0),
        ("nothing recomputed, CUDA graphs", eighth, _GRAPHS, 0.0),
        ("nothing recomputed, Liger's loss", quarter, {"loss": {"name": "liger"}}, 0.0),
        ("nothing recomputed, larger GPU", half, {}, LARGE_GB),
        ("swiglu recomputed, larger GPU", whole, _SWIGLU, LARGE_GB),
    ]
    in_fp8 = {"precision": {"fp8": {"recipe": "tensorwise"}}}
    for way, micro_batch, changes, least_gb in ways:
        name = f"micro-batch {micro_batch}, {way}"
        yield _Plan("target", name, whole, changes, micro_batch, least_gb=least_gb)
        fp8 = {**changes, **in_fp8}
        yield _Plan("target", f"FP8, {name}", whole, fp8, micro_batch, least_gb=least_gb)


def _ranks(whole: int) -> Iterator[_Plan]:
    """Yield the best-known shape on 1, 2, 4 and 8 GPUs: the same work on each."""
    micro_batch = max(1, whole // 8)
    for count in (1, 2, 4, 8):
        sequences = whole * count
        yield _Plan("ranks", f"{count} GPU{'s' * (count > 1)}", sequences, {}, micro_batch, count)
        if count > 1:
            changes = {"parallel": {"compression": "bf16"}}
            name = f"{count} GPUs, bf16 gradients"
            yield _Plan("ranks", name, sequences, changes, micro_batch, count)


def _techniques(whole: int, quarter: int, eighth: int) -> Iterator[_Plan]:
    for loss in LOSSES:
        for count in (max(1, whole // 2), whole):
            changes = {**_BLOCK, "loss": {"name": loss}}
            yield _Plan("losses", f"{loss}, {count} sequences", count, changes)
    z_loss = {**_BLOCK, "loss": {"z_loss": 1e-4}}
    yield _Plan("losses", f"chunked with z-loss, {whole} sequences", whole, z_loss)
    for policy in _POLICIES:
        name, _, rest = policy.partition(",")
        changes = {"activation_checkpointing": {"policy": name, "every": 2 if rest else 1}}
        yield _Plan("checkpointing", policy, quarter, changes)
    precisions = {
        "fp32": _FP32,
        "tf32": {"compute": "fp32", "tf32": True},
        "bf16": _BF16,
        "fp16": {"compute": "fp16", "tf32": True},
    }
    for name, precision in precisions.items():
        yield _Plan("precision", name, quarter, {**_BLOCK, "precision": precision})
    for recipe in ("none", "tensorwise", "rowwise", "te_delayed"):
        changes = {**_BLOCK, "precision": {"fp8": {"recipe": recipe}}}
        if recipe == "te_delayed":
            changes |= _EAGER
        yield _Plan("fp8", recipe, whole, changes)
    ways = {
        "eager": _EAGER,
        "block, default": _COMPILED,
        "block, reduce-overhead": _GRAPHS,
        "block, max-autotune": {"compile": {"scope": "block", "mode": "max-autotune"}},
        "model, default": {"compile": {"scope": "model"}},
    }
    for name, way in ways.items():
        yield _Plan("compile", name, quarter, {**_BLOCK, **way})
    joint = {"compile": {"scope": "block", "joint_products": True}}
    residual = {"precision": {"compute": "bf16", "residual": "bf16"}}
    options: dict[str, dict[str, Any]] = {
        "neither": {},
        "joint products": joint,
        "bf16 residual stream": residual,
        "both": {**joint, **residual},
    }
    for name, changes in options.items():
        yield _Plan("options", name, eighth, changes)
    optimizers: dict[str, dict[str, Any]] = {
        "adamw": {"name": "adamw"},
        "adamw, not fused": {"name": "adamw", "fused": False},
        "adamw8bit, bitsandbytes": {"name": "adamw8bit"},
        "adamw8bit, torchao": {"name": "adamw8bit", "library": "torchao"},
        "muon": {"name": "muon"},
        **{f"muon, {name}": {"name": "muon", **changes} for name, changes in _MUON.items()},
        "muon, all four": {"name": "muon", **{k: v for c in _MUON.values() for k, v in c.items()}},
    }
    for name, optimizer in optimizers.items():
        yield _Plan("optimizers", name, quarter, {**_BLOCK, "optimizer": optimizer})


def _attention(whole: int, quarter: int, eighth: int) -> Iterator[_Plan]:
    masked = {**_BLOCK, "attention": {"document_masking": True}}
    yield _Plan("masks", "none", quarter, _BLOCK)
    yield _Plan("masks", "documents", quarter, masked)
    yield _Plan("masks", "documents, eager", quarter, {**masked, **_EAGER})
    for backend in BACKENDS:
        changes = {**_BLOCK, **_EAGER, "attention": {"backend": backend}}
        yield _Plan("attention", backend, eighth, changes)
        # The follow-up study's FlashAttention 3 broke the graph when compiled, and took longer.
        name = f"{backend}, compiled"
        yield _Plan("attention", name, eighth, {**changes, **_COMPILED})
    tokens = max(1, whole // 16)
    for factor in (0.25, 0.5, 1.0, 2.0):
        count = max(1, int(tokens / factor))
        for backend in ("auto", "math"):
            changes = {**_EAGER, "attention": {"backend": backend}}
            name = f"{backend}, {factor:g} x the length"
            yield _Plan("context", name, count, changes, length=factor)
