"""Profiles of a few steady steps, with the phases of a step named in them, and their summary.

``Profiler.phase`` costs nothing unless a profile was asked for. In a summary each instant of the
profiled steps belongs to one class: a matrix product if one runs, else another kernel, else a copy,
else communication (which is then exposed), else idle.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lehr_trainer.configs.execution import ProfileConfig
from lehr_trainer.contract.records import LogFn

_CLASSES = ("matmul", "other", "copy", "communication")
"""Classes by priority: an instant in which several run belongs to the first."""

GPU_EVENTS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP = re.compile(r"ProfilerStep#\d+")
_COMMUNICATION = re.compile(
    r"nccl|c10d::|gloo:|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE
)
_COPY = re.compile(r"memcpy|memset|aten::(copy_|_to_copy|zero_|fill_)$", re.IGNORECASE)
_MATMUL = re.compile(
    r"gemm|cublas|cutlass|nvjet|xmma|splitkreduce|wgmma|"
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|mv|_scaled_mm)$|mkldnn_linear|"
    r"flash|fmha|efficient_attention|_scaled_dot_product",
    re.IGNORECASE,
)
"""Attention kernels are matrix products too."""


@dataclass(frozen=True)
class Summary:
    """Shares of the profiled steps' time; they add up to 1."""

    device: str
    """gpu: kernels on the device. cpu: operators on the host."""
    steps: int
    step_ms: float
    matmul: float
    other_kernels: float
    copies: float
    exposed_communication: float
    idle: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return (
            f"{self.steps} steady steps of {self.step_ms:,.1f} ms on the {self.device}: "
            f"{self.matmul:.1%} matrix products, {self.other_kernels:.1%} other kernels, "
            f"{self.copies:.1%} copies, {self.exposed_communication:.1%} exposed communication, "
            f"{self.idle:.1%} idle"
        )


def summarise(events: Iterable[Mapping[str, Any]]) -> Summary:
    """Summarise a trace's ``traceEvents``: its profiled steps, or all of it if there is none."""
    spans = [e for e in events if e.get("ph") == "X" and "ts" in e]
    on_gpu = [e for e in spans if e.get("cat") in GPU_EVENTS]
    work = on_gpu or [e for e in spans if e.get("cat") == "cpu_op"]
    # The profiler marks a step on the host and, with a GPU, on the device's rows too.
    marks = [e for e in spans if _STEP.fullmatch(str(e.get("name", "")))]
    rows = [e for e in marks if e.get("cat") == "gpu_user_annotation"] if on_gpu else marks
    rows = rows or marks
    begin = min((float(e["ts"]) for e in rows or work), default=0.0)
    end = max((float(e["ts"]) + float(e.get("dur", 0)) for e in rows or work), default=0.0)
    busy = class_times(work, begin, end)
    length = end - begin
    steps = len({e["name"] for e in rows})
    shares = {name: busy[name] / length if length else 0.0 for name in _CLASSES}
    return Summary(
        device="gpu" if on_gpu else "cpu",
        steps=steps,
        step_ms=length / 1000 / max(1, steps),
        matmul=shares["matmul"],
        other_kernels=shares["other"],
        copies=shares["copy"],
        exposed_communication=shares["communication"],
        idle=1.0 - sum(shares.values()) if length else 0.0,
    )


def kind_of(event: Mapping[str, Any]) -> str:
    """Classify an event: matmul, other, copy or communication."""
    name = str(event.get("name", ""))
    if _COMMUNICATION.search(name):
        return "communication"
    if event.get("cat") in {"gpu_memcpy", "gpu_memset"} or _COPY.search(name):
        return "copy"
    return "matmul" if _MATMUL.search(name) else "other"


def class_times(work: Iterable[Mapping[str, Any]], begin: float, end: float) -> dict[str, float]:
    """Add up the time of each class between ``begin`` and ``end``: a sweep over all event ends."""
    edges: list[tuple[float, int, str]] = []
    for event in work:
        start = max(begin, float(event["ts"]))
        stop = min(end, float(event["ts"]) + float(event.get("dur", 0)))
        if stop > start:
            kind = kind_of(event)
            edges += [(start, 1, kind), (stop, -1, kind)]
    edges.sort(key=lambda edge: edge[0])
    running = dict.fromkeys(_CLASSES, 0)
    total = dict.fromkeys(_CLASSES, 0.0)
    before = begin
    for time, change, kind in edges:
        leading = next((name for name in _CLASSES if running[name]), None)
        if leading is not None:
            total[leading] += time - before
        running[kind] += change
        before = time
    return total


_UNDER_NSYS = "NSYS_PROFILING_SESSION_ID"
"""Environment variable that Nsight Systems sets for its processes."""


class Profiler:
    """Records steps: ``phase(...)`` around parts of a step, ``step()`` after each, ``close()``."""

    def __init__(
        self, config: ProfileConfig, folder: Path, *, rank: int, device: torch.device, log: LogFn
    ) -> None:
        """Start a profile if the config asks for it; it is written to ``folder``."""
        self._config, self._folder, self._rank = config, folder, rank
        self._device, self._log = device, log
        self._steps = 0
        self._torch: torch.profiler.profile | None = None
        self._capturing = False
        if config.tool == "torch":
            self._torch = self._start_torch()
        elif config.tool == "nsys":
            self._start_nsys()

    @property
    def recording(self) -> bool:
        """Whether a profile of torch's is open; its end writes a trace, which takes seconds."""
        return self._torch is not None

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Name what runs within, in the trace."""
        if self._torch is not None:
            return torch.profiler.record_function(name)
        return _nvtx(name) if self._capturing else nullcontext()

    def step(self) -> None:
        """Record the end of a step."""
        self._steps += 1
        if self._torch is not None:
            self._torch.step()
            config = self._config
            if self._steps >= config.wait + config.warmup + config.active:
                self.close()
        elif self._config.tool == "nsys" and self._device.type == "cuda":
            self._capture_if_due()

    def close(self) -> None:
        """End a profile that is still open, because the run was shorter than it."""
        profile, self._torch = self._torch, None
        if profile is not None:
            profile.stop()
        if self._capturing:
            self._capturing = False
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    # --- torch -------------------------------------------------------------------------------

    def _start_torch(self) -> torch.profiler.profile:
        config = self._config
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(
                wait=config.wait, warmup=config.warmup, active=config.active, repeat=1
            ),
            on_trace_ready=self._write,
        )
        profile.start()
        return profile

    def _write(self, profile: torch.profiler.profile) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"trace-rank-{self._rank}.json.gz"
        plain = path.with_suffix("")
        profile.export_chrome_trace(str(plain))
        content = plain.read_bytes()
        path.write_bytes(gzip.compress(content, compresslevel=3))
        plain.unlink()
        summary = summarise(json.loads(content)["traceEvents"])
        (self._folder / f"summary-rank-{self._rank}.json").write_text(
            json.dumps(summary.as_dict(), indent=1)
        )
        self._log(f"profile: {path} (open it in https://ui.perfetto.dev)")
        self._log(f"profile: {summary.sentence()}")

    # --- nsys --------------------------------------------------------------------------------

    def _start_nsys(self) -> None:
        if self._device.type != "cuda":
            self._log("profile.tool: nsys looks at CUDA only; on this machine nothing is captured")
        if _UNDER_NSYS not in os.environ:
            # Nsight must start the ranks; a run that it did not start can only print the command.
            run_dir = self._folder.parent.parent
            command = nsys_command(training_command(run_dir), self._folder / "nsys")
            self._log(f"profile.tool: nsys captures a run that it starts itself: {command}")
        if self._device.type == "cuda":
            self._capture_if_due()

    def _capture_if_due(self) -> None:
        first = self._config.wait + self._config.warmup
        if self._steps == first:
            self._capturing = True
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        elif self._steps == first + self._config.active and self._capturing:
            self.close()


@contextmanager
def _nvtx(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def training_command(run_dir: Path) -> list[str]:
    """Build the command that starts the run with as many ranks on this machine as it has now."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == 1:
        return [sys.executable, "-m", "lehr_trainer", str(run_dir)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", "lehr_trainer", str(run_dir)]


def nsys_command(training: Sequence[str], output: Path) -> str:
    """Build the command that runs ``training`` under Nsight Systems and keeps only steady steps.

    Percentages over a whole process include start-up and compilation and are
    misleading (docs/reference-runs.md). Kernels inside CUDA graphs are shown one by one.
    """
    nsys = [
        "nsys",
        "profile",
        f"--output={output}",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--cuda-graph-trace=node",
        "--trace=cuda,nvtx,osrt,cudnn,cublas",
        "--force-overwrite=true",
    ]
    return shlex.join([*nsys, *training])
