"""Environment of a run: device name, versions, determinism, memory, and its process's context."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import psutil
import torch

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import LogFn
from lehr_trainer.errors import BadConfig
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.hangs import Pulse
from lehr_trainer.runtime.installed import distributions, driver_version
from lehr_trainer.runtime.launch import RunPaths
from lehr_trainer.step_control import StopSignal

_WORKSPACES = (":4096:8", ":16:8")
"""With these alone cuBLAS adds in the same order each time."""


def prepare_process(config: TrainConfig) -> None:
    """Set threads and determinism, before anything is computed.

    Raises:
        BadConfig: a variable of the environment contradicts ``deterministic``.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        # cuBLAS reads its workspace when it is first used; NCCL its algorithm when it starts.
        workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if workspace not in _WORKSPACES:
            raise BadConfig(
                "deterministic is true, but the environment sets CUBLAS_WORKSPACE_CONFIG to "
                f"{workspace!r}; unset it, or set it to one of {', '.join(_WORKSPACES)}"
            )
        os.environ.setdefault("NCCL_ALGO", "Ring")
        torch.use_deterministic_algorithms(mode=True)
        # Filling empty tensors guards against reading them; it costs and changes no result.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False


def determinism() -> dict[str, Any]:
    """Return the settings that decide whether two runs are bitwise equal, as they are now."""
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "nccl_algorithm": os.environ.get("NCCL_ALGO"),
        "float32_products": torch.get_float32_matmul_precision(),
    }


def seed_generators(seed: int, rank: int) -> None:
    """Seed each rank's own generators; initial weights and data order do not use them."""
    import random

    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % 2**32)  # noqa: NPY002 - checkpoints keep this generator
    torch.manual_seed(seed * 1_000_003 + rank)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


DISTRIBUTIONS = (
    "triton",
    "pytorch-triton",
    "torchao",
    "bitsandbytes",
    "liger-kernel",
    "cut-cross-entropy",
    "transformer-engine",
    "transformer-engine-cu12",
    "transformer-engine-cu13",
    "transformer-engine-torch",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "quack-kernels",
    # Libraries of CUDA that torch loads; their versions can change under the same torch.
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cusparselt-cu12",
    "nvidia-cusparselt-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
"""Distributions beside torch and numpy whose kernels can change the numbers of a training."""
_DECIDE_RESULTS = ("python", "torch", "cuda", "cudnn", "driver", "numpy", *DISTRIBUTIONS)


def versions() -> dict[str, str]:
    """Return the versions of Lehr and of all that can change results; installed ones only."""
    return {
        "lehr": metadata.version("lehr"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "cudnn": str(torch.backends.cudnn.version() or "none"),  # type: ignore[no-untyped-call]
        "driver": driver_version(),
        "numpy": np.__version__,
        **_computing(),
    }


@cache
def _computing() -> dict[str, str]:
    """Return the versions of ``DISTRIBUTIONS`` when first asked: each save records them."""
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the versions that may change results and differ, as ``torch 2.12 -> 2.13``.

    A version that was not recorded before counts as unchanged.
    """
    return [
        f"{name} {before[name]} -> {now.get(name, 'none')}"
        for name in _DECIDE_RESULTS
        if name in before and before[name] != now.get(name, "none")
    ]


def host(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "cpu": torch.backends.cpu.get_cpu_capability(),  # What its kernels use: AVX2, AVX512, ...
        "pid": os.getpid(),
        "command": sys.orig_argv,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "determinism": determinism(),
        "distributions": distributions(),
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts["gpu_memory_bytes"] = found.total_memory
        facts["compute_capability"] = f"{found.major}.{found.minor}"
    return facts


def memory_values(device: torch.device, *, cuda_graphs: bool = False) -> dict[str, float]:
    """Return the bytes in use, and their peak since the last call.

    ``cuda_graphs``: steps are replayed. The allocator does not see what a replay uses (on an H200
    it counted 23 GB of 46), so the bytes that it has reserved stand for the peak.
    """
    if device.type != "cuda":
        return {"memory/rss_bytes": float(psutil.Process().memory_info().rss)}
    values = {
        "memory/allocated_bytes": float(torch.cuda.memory_allocated(device)),
        "memory/peak_bytes": float(torch.cuda.memory_reserved(device))
        if cuda_graphs
        else float(torch.cuda.max_memory_allocated(device)),
        "memory/reserved_bytes": float(torch.cuda.memory_reserved(device)),
    }
    torch.cuda.reset_peak_memory_stats(device)
    return values


class Timeline:
    """Seconds from the start of the process to each phase's end, phase by phase."""

    def __init__(self) -> None:
        self._clock = time.time
        self._last = psutil.Process().create_time()
        self.phases: dict[str, float] = {}

    def mark(self, phase: str) -> None:
        """Record the time since the last mark as ``phase``."""
        now = self._clock()
        self.phases[phase] = round(now - self._last, 3)
        self._last = now


@dataclass(frozen=True)
class RunContext:
    """Context of one process of one attempt: what most parts of a training need."""

    config: TrainConfig
    """Resolved for the ranks' device."""
    place: RunPaths
    ranks: Ranks
    events: EventStream
    """Writes nothing on ranks other than 0."""
    signals: StopSignal
    timeline: Timeline
    log: LogFn
    """Prints a line of progress, on rank 0 only."""
    known_checkpoint_seq: int = 0
    """Sequence number in the orders when the attempt began."""
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.on(self.ranks.device.type))
