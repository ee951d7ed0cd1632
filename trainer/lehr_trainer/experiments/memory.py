"""Memory of a step: the allocator's figures on CUDA, the resident set on a CPU."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

ON_CPU = (
    "bytes of the tensors at rest, and by how much the process's resident set rises above "
    "that in a step of its own (VmHWM, set back before it)"
)
ON_CUDA = (
    "torch.cuda.max_memory_allocated over all steps after the first; with CUDA graphs, whose "
    "replays it does not count, torch.cuda.max_memory_reserved"
)

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors, counting each storage once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def measure(
    act: Callable[[], None],
    held: Iterable[Tensor],
    device: torch.device,
    *,
    cuda_graphs: bool = False,
) -> dict[str, float]:
    """Measure the most bytes during ``act``, with those of ``held``, which exist throughout.

    On CUDA the peak since the last reset counts, and ``act`` is called once more. If it replays
    CUDA graphs, the reserved bytes are the peak: the allocator does not see a replay's. On a CPU
    without /proc there are no figures.
    """
    if device.type == "cuda":
        act()
        torch.cuda.synchronize(device)
        reserved = float(torch.cuda.max_memory_reserved(device))
        peak = reserved if cuda_graphs else float(torch.cuda.max_memory_allocated(device))
        return {"memory_bytes": peak, "reserved_bytes": reserved}
    if not _CLEAR.exists():
        act()
        return {}
    gc.collect()
    _give_back()
    at_rest = _status("VmRSS")
    _CLEAR.write_text("5")
    act()
    rise = max(0, _status("VmHWM") - at_rest)
    return {"memory_bytes": float(held_bytes(held) + rise)}


def _give_back() -> None:
    """Return freed memory to the system: what the C library keeps would hide a step's memory."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
