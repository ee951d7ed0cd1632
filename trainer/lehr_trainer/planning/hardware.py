"""The table of GPUs: their peaks, prices and usual MFU. An unknown GPU has no entry.

Peaks are dense, with fp32 accumulation, from the vendors' data sheets. The sheets also print twice
as much for sparse matrices; MFU against that figure is half of what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Arithmetic = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]

_GIB = 2**30


@dataclass(frozen=True)
class GpuType:
    """A kind of GPU, recognised by words of its driver's name."""

    kind: str
    """The usual name, e.g. ``H100``."""
    name: str
    """The words by which a spec asks for it, e.g. ``H100 NVL``."""
    memory_bytes: int
    peak_flops: dict[Arithmetic, float]
    """Dense FLOP/s."""
    dollars_per_hour: float
    """Default price on demand, rounded, for plans; ``--price`` gives the real one."""

    @property
    def words(self) -> frozenset[str]:
        return frozenset(self.name.split())


def _gpu(
    kind: str,
    name: str,
    memory_gib: float,
    *,
    bf16: float | None = None,
    fp16: float | None = None,
    tf32: float | None = None,
    fp8: float | None = None,
    fp32: float,
    dollars: float,
) -> GpuType:
    """Make a table row; peaks in TFLOP/s, ``fp16`` as ``bf16`` unless given.

    ``memory_gib`` is what CUDA offers (``total_memory`` in torch, rounded down), which is not the
    number in the name: an H100 of "80 GB" has 79.1 GiB, that is 84.9 GB.
    """
    peaks: dict[Arithmetic, float | None] = {
        "fp32": fp32,
        "tf32": tf32,
        "bf16": bf16,
        "fp16": fp16 or bf16,
        "fp8": fp8,
    }
    return GpuType(
        kind=kind,
        name=name,
        memory_bytes=round(memory_gib * _GIB),
        peak_flops={name: peak * 1e12 for name, peak in peaks.items() if peak is not None},
        dollars_per_hour=dollars,
    )


GPUS: tuple[GpuType, ...] = (
    _gpu("B200", "B200", 178.3, bf16=2250, tf32=1125, fp8=4500, fp32=75, dollars=5.00),
    _gpu("H200", "H200", 139.8, bf16=989.4, tf32=494.7, fp8=1978.9, fp32=66.9, dollars=3.50),
    _gpu("H200", "H200 NVL", 139.8, bf16=835.5, tf32=417.7, fp8=1670.9, fp32=60.3, dollars=3.50),
    _gpu("GH200", "GH200", 94.5, bf16=989.4, tf32=494.7, fp8=1978.9, fp32=66.9, dollars=2.50),
    _gpu("H100", "H100", 79.1, bf16=989.4, tf32=494.7, fp8=1978.9, fp32=66.9, dollars=3.00),
    _gpu("H100", "H100 NVL", 93.0, bf16=835.5, tf32=417.7, fp8=1670.9, fp32=60.3, dollars=3.00),
    _gpu("H100", "H100 PCIE", 79.1, bf16=756, tf32=378, fp8=1513, fp32=51.2, dollars=3.00),
    _gpu("A100", "A100", 79.1, bf16=312, tf32=156, fp32=19.5, dollars=2.00),
    _gpu("A100", "A100 40GB", 39.4, bf16=312, tf32=156, fp32=19.5, dollars=2.00),
    _gpu("A40", "A40", 44.4, bf16=149.7, tf32=74.8, fp32=37.4, dollars=0.80),
    _gpu("A10", "A10", 22.0, bf16=125, tf32=62.5, fp32=31.2, dollars=0.75),
    _gpu("A10G", "A10G", 22.0, bf16=70, tf32=35, fp32=35, dollars=1.00),
    _gpu("L40S", "L40S", 44.4, bf16=362, tf32=183, fp8=733, fp32=91.6, dollars=1.00),
    _gpu("L4", "L4", 22.0, bf16=121, tf32=60, fp8=242.5, fp32=30.3, dollars=0.60),
    _gpu("RTX 4090", "RTX 4090", 23.6, bf16=165.2, tf32=82.6, fp8=330.3, fp32=82.6, dollars=0.50),
    _gpu("RTX 3090", "RTX 3090", 23.6, bf16=71, tf32=35.6, fp32=35.6, dollars=0.30),
    _gpu("V100", "V100", 15.7, fp16=125, fp32=15.7, dollars=0.80),
    _gpu("V100", "V100 32GB", 31.7, fp16=125, fp32=15.7, dollars=0.80),
    _gpu("T4", "T4", 14.5, fp16=65, fp32=8.1, dollars=0.35),
)

_OTHER_DEVICES = frozenset({"MIG", "LAPTOP", "TI", "SUPER", "MAX", "ADA"})
"""Words that make a known name another device: a slice of it, or a slower or faster variant.

A row for such a device has the word among its ``words``.
"""


def find_gpu(device_name: str) -> GpuType | None:
    """Find the row for a driver's name such as ``NVIDIA H100 80GB HBM3``; None if unknown."""
    words = set(re.split(r"[^A-Z0-9.]+", device_name.upper()))
    others = words & _OTHER_DEVICES
    fitting = [gpu for gpu in GPUS if others <= gpu.words <= words]
    return max(fitting, key=lambda gpu: len(gpu.words), default=None)


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Return the dense FLOP/s, or None if unknown."""
    gpu = find_gpu(device_name)
    return None if gpu is None else gpu.peak_flops.get(arithmetic)


def gpu_of_kind(kind: str) -> GpuType | None:
    """Find the row for a spec's words such as ``A100`` or ``H100 NVL``; None if unknown.

    ``A100`` is the plain one, which usually is the one of 80 GB.
    """
    return find_gpu(kind) or next((gpu for gpu in GPUS if kind.upper() in gpu.words), None)


def names(gpus: Iterable[GpuType]) -> list[str]:
    """Return the words by which a spec asks for one of these, those with least memory first.

    A variant is left out where the plain one of its kind is among them.
    """
    by_memory = sorted(gpus, key=lambda gpu: gpu.memory_bytes)
    every = {gpu.name for gpu in by_memory}
    return [gpu.name for gpu in by_memory if gpu.name == gpu.kind or gpu.kind not in every]


@dataclass(frozen=True)
class UsualMfu:
    """The share of the dense peak that trainings reach on a GPU, without recomputation."""

    share: float
    """What a plan assumes, from 0 to 1."""
    source: str
    """Where it comes from, with the range of the published figures."""


_MFU = {
    "A100": UsualMfu(0.50, "published runs on A100 reach 29 to 62 %"),
    "H100": UsualMfu(0.42, "published runs on H100 reach 35 to 44 %"),
    "H200": UsualMfu(0.50, "Lehr's runs of a 1.2B model on one H200 reached 55 to 58 %"),
}
"""From the tables of llm-foundry (scripts/train/benchmarking) for 0.1 to 3 G parameters at 2,048
tokens. The lowest figure of the A100 is that of nanoGPT's four days on 8 GPUs. That of the H200 is
from docs/benchmarks.md; less is assumed, since smaller models and several GPUs reach less.
``tests/bench/published_plans.py`` sets plans beside these runs and others.
"""
_LIKE_H100 = ("GH200",)
"""GPUs with the H100's arithmetic units."""
_ASSUMED = UsualMfu(0.35, "assumed: no published run on this GPU is known")


def usual_mfu(kind: str) -> UsualMfu:
    """Return the usual MFU on a kind of GPU, as the GPU table names it."""
    if kind in _LIKE_H100:
        return _MFU["H100"]
    return _MFU.get(kind, _ASSUMED)
