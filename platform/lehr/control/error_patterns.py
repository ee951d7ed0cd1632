"""What error texts in the output of a program mean: their causes, and the budgets that pay.

torch, NCCL and the driver report some causes only as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Budget(StrEnum):
    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    NONE = "none"
    """Another try would fail the same way."""


@dataclass(frozen=True, slots=True)
class Pattern:
    cause: str
    budget: Budget
    expressions: tuple[str, ...]
    message: str
    regex: re.Pattern[str]
    """All expressions as one."""
    node_fault: bool
    """The cause lies in the node, which is excluded if it fails in the same way again."""


def _pattern(
    cause: str, budget: Budget, message: str, *expressions: str, node_fault: bool = False
) -> Pattern:
    regex = re.compile("|".join(expressions))
    return Pattern(cause, budget, expressions, message, regex, node_fault)


PATTERNS: tuple[Pattern, ...] = (
    # The first that matches decides, so that hardware comes before the NCCL error it causes.
    _pattern(
        "ecc_error",
        Budget.INFRASTRUCTURE,
        "a GPU had an uncorrectable memory error (ECC)",
        r"uncorrectable (?:NVLink|ECC) error",
        r"Xid \([^)]*\): (?:48|63|64|94|95)\b",
        r"[Dd]ouble[- ][Bb]it ECC",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        node_fault=True,
    ),
    _pattern(
        "gpu_lost",
        Budget.INFRASTRUCTURE,
        "a GPU was lost by its driver",
        r"GPU has fallen off the bus",
        r"Xid \([^)]*\): (?:74|79|119|120)\b",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"no CUDA-capable device is detected",
        r"Unable to determine the device handle for GPU",
        r"Driver/library version mismatch",
        r"CUDA driver initialization failed",
        r"CUDA error: unknown error",
        r"[Ss]ystem not yet initialized",
        node_fault=True,
    ),
    _pattern(
        "stalled",
        Budget.INFRASTRUCTURE,
        "it sent heartbeats but made no steps: a rank, a collective or a disk hangs",
        r"no step for \d+ s: stall_limit_s is ",
    ),
    _pattern(
        "out_of_memory",
        Budget.NONE,
        "the GPU ran out of memory; a smaller micro_batch, activation checkpointing or more GPUs "
        "would help",
        r"torch\.OutOfMemoryError",
        r"torch\.cuda\.OutOfMemoryError",
        r"CUDA out of memory",
        r"CUDA error: out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"HIP out of memory",
    ),
    _pattern(
        "out_of_memory",
        Budget.NONE,
        "the machine ran out of memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"(?m:^)MemoryError\b",
        r"Cannot allocate memory",
        r"std::bad_alloc",
        r"oom-kill",
    ),
    # Its files are in memory; a full /dev/shm is no full disk.
    _pattern(
        "shared_memory_full",
        Budget.NONE,
        "shared memory is full: loader workers need more of it (in a container: --shm-size)",
        r"insufficient shared memory \(shm\)",
        r"unable to (?:write to|allocate) (?:file|shared memory).*</?torch_",
        r"workers are out of shared memory",
    ),
    _pattern(
        "disk_full",
        Budget.INFRASTRUCTURE,
        "a disk is full",
        r"No space left on device",
        r"Disk quota exceeded",
        r"\[Errno (?:28|122)\]",
    ),
    _pattern(
        "nccl_timeout",
        Budget.INFRASTRUCTURE,
        "a collective operation timed out: a rank or a link stopped answering",
        r"Watchdog caught collective operation timeout",
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        r"Timeout at NCCL work",
        r"collective operation timeout: WorkNCCL",
    ),
    _pattern(
        "nccl_error",
        Budget.INFRASTRUCTURE,
        "communication between GPUs failed",
        r"ncclSystemError",
        r"ncclRemoteError",
        r"ncclInternalError",
        r"ncclUnhandledCudaError",
        r"NCCL communicator was aborted",
    ),
    _pattern(
        "network",
        Budget.INFRASTRUCTURE,
        "the connection between ranks was lost or never made",
        r"RendezvousTimeoutError",
        r"RendezvousConnectionError",
        r"DistNetworkError",
        r"DistStoreError",
        r"The client socket has (?:timed out|failed)",
        r"Connection closed by peer",
        r"gloo/transport.*(?:Connection reset|Connection refused|Broken pipe|timed out)",
        r"EADDRINUSE",
        r"[Aa]ddress already in use",
    ),
    _pattern(
        "download_failed",
        Budget.INFRASTRUCTURE,
        "a download failed",
        r"huggingface_hub\.errors\.(?:HfHubHTTPError|OfflineModeIsEnabled|LocalEntryNotFoundError)",
        r"(?:requests|urllib3|httpx|httpcore)\.\S*(?:ConnectionError|ConnectTimeout|ReadTimeout"
        r"|MaxRetryError|ConnectError)",
        r"Max retries exceeded with url",
        r"Temporary failure in name resolution",
    ),
    _pattern(
        "device_assert",
        Budget.USER,
        "a check on the GPU failed (an index out of range, most often a token id beyond the "
        "vocabulary)",
        r"device-side assert triggered",
    ),
)


def lacks_space(text: str) -> bool:
    """Return whether an error's text says that a disk is full."""
    full = next(pattern for pattern in PATTERNS if pattern.cause == "disk_full")
    return full.regex.search(text) is not None
