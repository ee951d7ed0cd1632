"""What error texts in the output of a program mean: their causes, and the budgets that pay.

torch, NCCL and the driver report some causes only as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lehr.base import formats


class Budget(StrEnum):
    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    NONE = "none"  # Another try would fail the same way.


@dataclass(frozen=True, slots=True)
class Pattern:
    cause: str
    budget: Budget
    expressions: tuple[str, ...]
    message: str
    regex: re.Pattern[str]  # All expressions as one.
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
    _pattern("hang", Budget.INFRASTRUCTURE, "steps stopped", r"hang at step [\d,]+: "),
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
        "out of memory: that of the machine, or a limit of the process",
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


_LONGEST = 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:rank|default)(\d+)\]: ?")
_HEADER = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
"""They end a launcher after its program, which has printed why."""
_IGNORED = re.compile("Exception ignored ")
"""Python prints it before the traceback of an error that ends nothing, mostly at its exit."""
_ASIDE = re.compile("Exception (?:ignored|in thread) ")
_CHAIN = re.compile("During handling of|The above exception was")
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_NO_ERROR = re.compile(
    r"\d%\||it/s\b|s/it\b|[Ww]arning: |^\[[WI]\d|^[\W_]*$|^\s|HYDRA_FULL_ERROR=1"
    "|^Exception ignored "
)
"""Progress bars, warnings, rulers, details of another line, and what Hydra adds to each error."""


def exit_reason(entry: str, code: int, output: str, log: str) -> str:
    """Return why a program failed; ``log`` is the command that prints its output."""
    if code < 0:
        return f"{entry} was killed by {formats.signal_name(-code)}; its output: {log}"
    # Python exits with 1 for an exception that nothing has caught.
    exception = raised(output) if code == 1 else None
    error = exception or last_line(output)
    how = f"{entry} exited with code {code}"
    if error is None:
        return f"{how}, and printed no error; its output: {log}"
    if exception or "error" in error.lower():
        return f"{error} ({how}; {log})"
    return f"{how}; the last line of its output: {error} ({log})"


def raised(output: str) -> str | None:
    """Return the exception that ended a program: that of its last traceback, or of the rank that
    failed first if a launcher names it. None if it raised none.
    """
    exceptions: list[tuple[str | None, str]] = []
    inside = False
    for line in _lines(output, _ASIDE):
        match = _RANK.match(line)
        rank, text = (match[1], line[match.end() :]) if match else (None, line)
        if not text:
            continue
        if text.endswith(_HEADER):
            inside = True
        elif (inside and not text[0].isspace()) or _EXCEPTION.match(text):
            exceptions.append((rank, text))
            inside = False
        elif exceptions and exceptions[-1][1].endswith(":"):  # The message begins on the next line.
            exceptions[-1] = (rank, f"{exceptions[-1][1]} {text.strip()}")
    causes = [one for one in exceptions if not any(name in one[1] for name in _LAUNCHERS)]
    first = _ROOT_CAUSE.search(output)
    of_first = [one for one in causes if first and one[0] == first[1]]
    named = of_first or causes or exceptions
    return _cut(named[-1][1]) if named else None


def last_line(output: str) -> str | None:
    """Return the last line that may be an error: no progress bar, and no warning."""
    found = [line for line in _lines(output, _IGNORED) if not _NO_ERROR.search(line)]
    return _cut(found[-1]) if found else None


def _lines(output: str, aside: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines without control characters, and without tracebacks after ``aside``. A
    carriage return ends a line as well.
    """
    before, skips, inside = "", False, False
    for raw in output.splitlines():
        line = "".join(c if c.isprintable() else " " for c in _COLOURS.sub("", raw)).rstrip()
        if not line:
            continue
        if line.endswith(_HEADER):
            skips = bool(aside.match(before) or (skips and _CHAIN.match(before)))
            inside = skips
        if not inside:
            yield line
        elif not (line[0].isspace() or line.endswith(_HEADER)):  # The error itself.
            inside = False
        before = line


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
