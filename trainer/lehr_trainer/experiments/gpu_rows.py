"""The rows of the whole GPU bench: published 1.2B configurations, and acceptance targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lehr_trainer.configs.loss import LOSSES
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.sizes import Size

SECTIONS: dict[str, str] = {
    "target": "Targets: the 1B model, 64 sequences a step",
    "losses": "Losses, every block recomputed",
    "checkpointing": "Activation checkpointing, 16 sequences",
    "precision": "Precision, every block recomputed",
    "fp8": "FP8 linears, 64 sequences, every block recomputed",
    "compile": "Eager and compiled, 16 sequences, every block recomputed",
    "optimizers": "Optimizers, 16 sequences, every block recomputed",
    "attention": "Attention kernels, 8 sequences, eager",
    "batch": "Sequences in a forward pass, every block recomputed",
}
"""Titles by name, most important first: the budget may end before the last."""

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


def rows(size: Size, device: str, *, eager: bool = False) -> Iterator[GpuRow]:
    """Yield every row. ``size``: llama-1b at [64, 2048], or a tiny one. ``eager``: compile none."""
    for section, name, shape, changes in _all(size.sequences):
        batch = {
            "sequences": shape[0],
            "sequence_length": size.sequence_length,
            "micro_batch": shape[1],
        }
        values = {"precision": _BF16, "compile": _COMPILED, **changes}
        if eager:
            values["compile"] = {"scope": "none"}
        yield GpuRow(section, Case(name, "training", config(size, device, batch=batch, **values)))


StepShape = tuple[int, int]
"""Sequences per step, and sequences per forward pass."""


def _all(whole: int) -> Iterator[tuple[str, str, StepShape, dict[str, Any]]]:
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
    for count in sorted({max(1, whole // divisor) for divisor in (64, 16, 4, 2, 1)}):
        yield "batch", str(count), (count, count), {"activation_checkpointing": _BLOCK}


def _targets(
    whole: int, quarter: int, eighth: int
) -> Iterator[tuple[str, str, StepShape, dict[str, Any]]]:
    """Yield ways to the same 64 sequences a step; each also in FP8, otherwise unchanged."""
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        f"micro-batch {eighth}, nothing recomputed": (eighth, {}),
        f"micro-batch {quarter}, swiglu recomputed": (
            quarter,
            {"activation_checkpointing": {"policy": "swiglu"}},
        ),
        f"micro-batch {whole}, blocks recomputed": (whole, {"activation_checkpointing": _BLOCK}),
        f"micro-batch {eighth}, nothing recomputed, CUDA graphs": (eighth, {"compile": _GRAPHS}),
    }
    for name, (micro_batch, changes) in ways.items():
        for kind, precision in {
            "bf16": _BF16,
            "FP8": {**_BF16, "fp8": {"recipe": "tensorwise"}},
        }.items():
            shape = (whole, micro_batch)
            yield "target", f"{kind}, {name}", shape, {**changes, "precision": precision}
