"""The GPUs of this node: real ones, or logical ones that the trainer runs on its CPU for."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lehr.errors import UserError
from lehr.node import procfs

LOGICAL = "logical GPU"
LOGICAL_GPUS = 8
"""Logical GPUs of a machine without GPUs, where nobody declared another number."""


@dataclass(frozen=True)
class GpuInfo:
    index: int
    name: str
    memory_bytes: int | None = None
    uuid: str | None = None
    """None for a logical one."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def real_gpus() -> list[GpuInfo]:
    """NVIDIA GPUs by nvidia-smi, in its order; none without a driver."""
    try:
        done = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=index,uuid,name,memory.total",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else []


def parse_nvidia_smi(text: str) -> list[GpuInfo]:
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != 4 or not row[0].isdigit():
            continue
        memory = int(float(row[3]) * 2**20) if row[3].replace(".", "").isdigit() else None
        gpus.append(GpuInfo(int(row[0]), row[2], memory, row[1]))
    return gpus


def visible(gpus: list[GpuInfo], variable: str | None) -> list[GpuInfo]:
    """Those that CUDA_VISIBLE_DEVICES (None: not set) leaves, in index order."""
    if variable is None:
        return gpus
    wanted = [part.strip() for part in variable.split(",") if part.strip()]
    return [
        gpu
        for gpu in gpus
        if str(gpu.index) in wanted
        or any(
            gpu.uuid and word.startswith("GPU-") and gpu.uuid.startswith(word) for word in wanted
        )
    ]


def gpus_to_offer(asked: int | None, home: Path) -> int:
    """How many GPUs this machine's own Ray node should have.

    The real ones. On a machine without any: as many logical ones as are asked for, else as were
    asked for last, else eight. None where a driver is installed and lists no GPU: training on the
    CPU is then hardly what is meant.

    Raises:
        UserError: more than there are on a machine that has real ones.
    """
    real = len(visible(real_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if real and asked is not None and asked > real:
        raise UserError(
            f"--gpus {asked}: this machine has {real} GPU{'s' if real > 1 else ''}.",
            hint="Logical GPUs are for machines without GPUs; omit --gpus to use all.",
        )
    if real:
        return real if asked is None else asked
    declared = _declared(home)
    if asked is not None:
        if asked != declared:
            procfs.write_json(str(_declaration(home)), {"gpus": asked})
        return asked
    if declared is not None:
        return declared
    return 0 if shutil.which("nvidia-smi") else LOGICAL_GPUS


def _declared(home: Path) -> int | None:
    """How many logical GPUs were asked for last, on this home."""
    found = procfs.read_json(str(_declaration(home)))
    number = found.get("gpus") if isinstance(found, dict) else None
    return number if isinstance(number, int) and number > 0 else None


def _declaration(home: Path) -> Path:
    folder = home / "ray"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "logical-gpus.json"


def node_gpus(granted: int) -> list[GpuInfo]:
    """The GPUs that Ray granted on this node, as many as ``granted``.

    Ray says which by CUDA_VISIBLE_DEVICES of the process that holds them.
    """
    real = visible(real_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if real:
        return real[:granted]
    return [GpuInfo(index, LOGICAL) for index in range(granted)]
