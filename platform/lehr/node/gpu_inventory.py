"""The GPUs of this node: real ones, or logical ones for training on the CPU."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lehr.base import procfs
from lehr.errors import UserError

LOGICAL = "logical GPU"
LOGICAL_VARIABLE = "LEHR_LOGICAL_GPUS"
"""Set to 1 in the environment of a Ray node that offers logical GPUs."""
LOGICAL_GPUS = 8  # Logical GPUs of a machine without GPUs, unless another number is given.


@dataclass(frozen=True)
class GpuInfo:
    index: int
    name: str
    memory_bytes: int | None = None
    uuid: str | None = None  # None for a logical GPU.

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def real_gpus() -> list[GpuInfo]:
    """Return the NVIDIA GPUs in the order of nvidia-smi; none without a driver."""
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


def visible_gpus() -> int:
    """Return the number of GPUs that this machine can offer."""
    return len(visible(real_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))


def parse_nvidia_smi(text: str) -> list[GpuInfo]:
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != 4 or not row[0].isdigit():
            continue
        memory = int(float(row[3]) * 2**20) if row[3].replace(".", "").isdigit() else None
        gpus.append(GpuInfo(int(row[0]), row[2], memory, row[1]))
    return gpus


def visible(gpus: list[GpuInfo], variable: str | None) -> list[GpuInfo]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows (None: not set), in index order."""
    if variable is None:
        return gpus
    parts = [part.strip() for part in variable.split(",") if part.strip()]
    return [
        gpu
        for gpu in gpus
        if str(gpu.index) in parts
        or any(gpu.uuid and word.startswith("GPU-") and gpu.uuid.startswith(word) for word in parts)
    ]


def gpus_to_offer(requested: int | None, home: Path) -> int:
    """Return the number of GPUs that this machine's Ray node should offer.

    All real ones. On a machine without GPUs: as many logical ones as requested, else as requested
    last, else eight. None where a driver is installed but lists no GPU: then training on the CPU is
    hardly intended.

    Raises:
        UserError: more than a machine with real GPUs has.
    """
    real = visible_gpus()
    if real and requested is not None and requested > real:
        raise UserError(
            f"--gpus {requested}: this machine has {real} GPU{'s' if real > 1 else ''}.",
            hint="Logical GPUs are for machines without GPUs; omit --gpus to use all.",
        )
    if real:
        return real if requested is None else requested
    declared = _declared(home)
    if requested is not None:
        if requested not in {0, declared}:
            procfs.write_json(str(_declaration(home)), {"gpus": requested})
        return requested
    if declared is not None:
        return declared
    return 0 if has_driver() else LOGICAL_GPUS


def _declared(home: Path) -> int | None:
    found = procfs.read_json(str(_declaration(home)))
    number = found.get("gpus") if isinstance(found, dict) else None
    return number if isinstance(number, int) and number > 0 else None


def _declaration(home: Path) -> Path:
    folder = home / "ray"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "logical-gpus.json"


def node_gpus(granted: int) -> list[GpuInfo]:
    """Return the GPUs that Ray granted on this node, as many as ``granted``.

    Ray sets CUDA_VISIBLE_DEVICES of the process that holds them. None if a driver is installed and
    lists no GPU: a training would run on the CPU, or beside another one (``gpu_problem``).
    """
    listed = real_gpus()
    if listed:
        return visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))[:granted]
    intended = os.environ.get(LOGICAL_VARIABLE) == "1" or not has_driver()
    return logical_gpus(granted) if intended else []


def logical_gpus(number: int) -> list[GpuInfo]:
    return [GpuInfo(index, LOGICAL) for index in range(number)]


def gpu_problem(granted: int, gpus: list[GpuInfo]) -> str | None:
    """Return why the node offers fewer GPUs than Ray granted, and what to do; None if it does not.

    ``gpus``: of ``node_gpus``.
    """
    if len(gpus) >= granted:
        return None
    has = len(real_gpus())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not has:
        return (
            f"its driver lists no GPU, but {granted} were declared: run nvidia-smi there, and "
            "restart the node when it lists them"
        )
    return (
        f"{granted} GPUs were declared, and {len(gpus)} of its {has} can be used"
        + (f" with CUDA_VISIBLE_DEVICES={allowed}" if allowed is not None else "")
        + ": declare as many as it has (GPUs split by MIG are not supported)"
    )


def has_driver() -> bool:
    """Return whether NVIDIA's driver is installed, whether it works or not."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()
