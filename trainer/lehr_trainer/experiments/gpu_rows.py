"""The rows of the whole GPU bench: published 1.2B configurations, and acceptance targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lehr_trainer.configs.loss import LOSSES
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.sizes import Size

SECTIONS: dict[str, str] = {
    "target": "Targets: the 1B model, 64 sequences a step",
    "ranks": "Several GPUs: 64 sequences a step on each",
    "losses": "Losses, every block recomputed",
    "checkpointing": "Activation checkpointing, 16 sequences",
    "precision": "Precision, every block recomputed",
    "fp8": "FP8 linears, 64 sequences, every block recomputed",
    "compile": "Eager and compiled, 16 sequences, every block recomputed",
    "options": "Joint products and a bf16 residual stream, 8 sequences, nothing recomputed",
    "optimizers": "Optimizers, 16 sequences, every block recomputed",
    "masks": "Document masks, 16 sequences, every block recomputed",
    "attention": "Attention kernels, 8 sequences, eager and compiled",
    "context": "Attention by sequence length, eager, at the same tokens a step",
    "batch": "Sequences in a forward pass, every block recomputed",
}
"""Titles by name, most important first: the budget may end before the last."""

LARGE_GB = 100.0
"""Memory of a GPU from which the rows for large ones run: those of an H200."""

_BF16 = {"compute": "bf16", "tf32": True}
_BLOCK = {"policy": "block"}
_GRAPHS = {"scope": "block", "mode": "reduce-overhead"}
_COMPILED = {"scope": "block"}


@dataclass(frozen=True)
class GpuRow:
    section: str
    case: Case

    @property
    def key(self) -> str:
        return f"{self.section}/{self.case.name}"


@dataclass(frozen=True)
class Hardware:
    """What a machine offers to the rows."""

    device: str
    """cpu or cuda."""
    gpus: int = 1
    """How many ranks can train; on a CPU two, with gloo."""
    memory_gb: float = math.inf
    """Of a GPU."""


def rows(size: Size, hardware: Hardware, *, eager: bool = False) -> Iterator[GpuRow]:
    """Yield every row. ``size``: llama-1b at [64, 2048], or a tiny one. ``eager``: compile none."""
    for plan in _all(size.sequences):
        changes = dict(plan.changes)
        length = max(8, int(size.sequence_length * plan.length))
        batch = {
            "sequences": plan.shape[0],
            "sequence_length": length,
            "micro_batch": plan.shape[1],
        }
        values = {"precision": _BF16, "compile": _COMPILED, **changes}
        if eager:
            values["compile"] = {"scope": "none"}
        why_not = "left out by --eager" if eager and plan.compiled else ""
        if plan.ranks > hardware.gpus:
            why_not = f"needs {plan.ranks} GPUs; this machine has {hardware.gpus}"
        elif plan.least_gb > hardware.memory_gb:
            why_not = (
                f"for GPUs of {plan.least_gb:.0f} GB or more; this one has {hardware.memory_gb:.0f}"
            )
        longest = {"model": _lengthened(size.model, length)}
        case = Case(
            plan.name,
            "training",
            config(size, hardware.device, batch=batch, **values, **longest),
            ranks=plan.ranks,
            skip=why_not,
        )
        yield GpuRow(plan.section, case)


def _lengthened(model: dict[str, Any], length: int) -> dict[str, Any]:
    """Return the model, for sequences of ``length``, if it has a longest one."""
    if model.get("max_sequence_length", length) >= length:
        return model
    return {**model, "max_sequence_length": length}


StepShape = tuple[int, int]
"""Sequences per step, and sequences per forward pass."""


class _Plan(NamedTuple):
    section: str
    name: str
    shape: StepShape
    changes: dict[str, Any]
    ranks: int = 1
    least_gb: float = 0.0
    """Memory of the GPU below which it is not tried."""
    compiled: bool = False
    """Whether it is left out where nothing is compiled, because another row is then the same."""
    length: float = 1.0
    """Sequence length, as a multiple of the size's."""


def _all(whole: int) -> Iterator[_Plan]:
    seen: set[tuple[str, str]] = set()
    for found in (*_one_gpu(whole), *_several(whole), *_context(whole)):
        plan = found if isinstance(found, _Plan) else _Plan(*found)
        # At a tiny size two shapes can be the same.
        if (plan.section, plan.name) not in seen:
            seen.add((plan.section, plan.name))
            yield plan


def _one_gpu(whole: int) -> Iterator[tuple[str, str, StepShape, dict[str, Any]] | _Plan]:
    quarter, eighth = max(1, whole // 4), max(1, whole // 8)
    yield from _targets(whole, quarter, eighth)
    for loss in LOSSES:
        if loss == "bf16_softmax":
            # For study only, on a small model.
            continue
        for count in (whole // 2 or 1, whole):
            name = f"{loss}, {count} sequences"
            yield (
                "losses",
                name,
                (count, count),
                {"activation_checkpointing": _BLOCK, "loss": {"name": loss}},
            )
    for name, recompute in {
        "none": {"policy": "none"},
        "embedding": {"policy": "embedding"},
        "norms": {"policy": "norms"},
        "attention": {"policy": "attention"},
        "swiglu": {"policy": "swiglu"},
        "block, every 2nd layer": {"policy": "block", "every": 2},
        "block": _BLOCK,
    }.items():
        yield "checkpointing", name, (quarter, quarter), {"activation_checkpointing": recompute}
    for name, precision in {
        "fp32": {"compute": "fp32", "tf32": False},
        "tf32": {"compute": "fp32", "tf32": True},
        "bf16": _BF16,
        "fp16": {"compute": "fp16", "tf32": True},
    }.items():
        changes = {"activation_checkpointing": _BLOCK, "precision": precision}
        yield "precision", name, (quarter, quarter), changes
    for recipe in ("none", "tensorwise", "rowwise", "te_delayed"):
        changes = {
            "activation_checkpointing": _BLOCK,
            "precision": {**_BF16, "fp8": {"recipe": recipe}},
        }
        if recipe == "te_delayed":
            changes["compile"] = {"scope": "none"}
        yield "fp8", recipe, (whole, whole), changes
    for name, way in {
        "eager": {"scope": "none"},
        "block, default": _COMPILED,
        "block, reduce-overhead": _GRAPHS,
        "block, max-autotune": {"scope": "block", "mode": "max-autotune"},
        "model, default": {"scope": "model"},
    }.items():
        yield (
            "compile",
            name,
            (quarter, quarter),
            {"activation_checkpointing": _BLOCK, "compile": way},
        )
    for name, (joint, residual) in {
        "neither": (False, "fp32"),
        "joint products": (True, "fp32"),
        "bf16 residual stream": (False, "bf16"),
        "both": (True, "bf16"),
    }.items():
        changes = {
            "compile": {**_COMPILED, "joint_products": joint},
            "precision": {**_BF16, "residual": residual},
        }
        yield _Plan("options", name, (eighth, eighth), changes, compiled=joint)
    for name, optimizer in {
        "adamw, not fused": {"name": "adamw", "fused": False},
        "adamw": {"name": "adamw"},
        "adamw8bit, bitsandbytes": {"name": "adamw8bit"},
        "adamw8bit, torchao": {"name": "adamw8bit", "library": "torchao"},
        "muon": {"name": "muon"},
    }.items():
        changes = {"activation_checkpointing": _BLOCK, "optimizer": optimizer}
        yield "optimizers", name, (quarter, quarter), changes
    for backend in ("auto", "flash", "cudnn", "efficient", "math", "fa3", "fa4"):
        changes = {
            "activation_checkpointing": _BLOCK,
            "compile": {"scope": "none"},
            "attention": {"backend": backend},
        }
        yield "attention", backend, (eighth, eighth), changes
    for backend in ("auto", "flash", "cudnn", "fa3"):
        # The follow-up study's FlashAttention 3 broke the graph when compiled, and took longer.
        changes = {"activation_checkpointing": _BLOCK, "attention": {"backend": backend}}
        name = f"{backend}, compiled"
        yield _Plan("attention", name, (eighth, eighth), changes, compiled=True)
    masked = {"activation_checkpointing": _BLOCK, "attention": {"document_masking": True}}
    yield "masks", "none", (quarter, quarter), {"activation_checkpointing": _BLOCK}
    yield "masks", "documents", (quarter, quarter), masked
    yield (
        "masks",
        "documents, eager",
        (quarter, quarter),
        {**masked, "compile": {"scope": "none"}},
    )
    for count in sorted({max(1, whole // divisor) for divisor in (64, 16, 4, 2, 1)}):
        yield "batch", str(count), (count, count), {"activation_checkpointing": _BLOCK}


def _targets(whole: int, quarter: int, eighth: int) -> Iterator[_Plan]:
    """Yield ways to the same 64 sequences a step; each also in FP8, otherwise unchanged."""
    swiglu = {"activation_checkpointing": {"policy": "swiglu"}}
    half = max(1, whole // 2)
    ways: list[tuple[str, int, dict[str, Any], float]] = [
        ("nothing recomputed", quarter, {}, 0.0),
        ("nothing recomputed", eighth, {}, 0.0),
        ("swiglu recomputed", quarter, swiglu, 0.0),
        ("blocks recomputed", whole, {"activation_checkpointing": _BLOCK}, 0.0),
        ("nothing recomputed, CUDA graphs", eighth, {"compile": _GRAPHS}, 0.0),
        ("nothing recomputed, Liger's loss", quarter, {"loss": {"name": "liger"}}, 0.0),
        ("nothing recomputed, larger GPU", half, {}, LARGE_GB),
        ("swiglu recomputed, larger GPU", whole, swiglu, LARGE_GB),
    ]
    kinds = {"bf16": _BF16, "FP8": {**_BF16, "fp8": {"recipe": "tensorwise"}}}
    for name, micro_batch, changes, least_gb in ways:
        for kind, precision in kinds.items():
            yield _Plan(
                "target",
                f"{kind}, micro-batch {micro_batch}, {name}",
                (whole, micro_batch),
                {**changes, "precision": precision},
                least_gb=least_gb,
            )


def _several(whole: int) -> Iterator[_Plan]:
    """Yield the best-known shape on 1, 2, 4 and 8 GPUs: the same work on each."""
    micro_batch = max(1, whole // 8)
    for count in (1, 2, 4, 8):
        shape = (whole * count, micro_batch)
        yield _Plan("ranks", f"{count} GPUs"[: None if count > 1 else -1], shape, {}, count)
        if count > 1:
            changes = {"parallel": {"compression": "bf16"}}
            yield _Plan("ranks", f"{count} GPUs, bf16 gradients", shape, changes, count)


def _context(whole: int) -> Iterator[_Plan]:
    """Yield flash and math attention on sequences of several lengths, at the same tokens a step."""
    tokens = max(1, whole // 16)
    for factor in (0.25, 0.5, 1.0, 2.0):
        count = max(1, int(tokens / factor))
        for backend in ("auto", "math"):
            changes = {"compile": {"scope": "none"}, "attention": {"backend": backend}}
            name = f"{backend}, {factor:g} x the length"
            yield _Plan("context", name, (count, count), changes, length=factor)
