"""Profiles of a few steady steps, with the phases of a step named in them.

``Profiler.phase`` costs nothing unless a profile was asked for.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from lehr_trainer.callbacks import LogFn
from lehr_trainer.configs.diagnostics import ProfileConfig
from lehr_trainer.diagnostics.trace_summary import summarise

_UNDER_NSYS = "NSYS_PROFILING_SESSION_ID"
"""Environment variable that Nsight Systems sets for its processes."""


class Profiler:
    """Records steps: ``phase(...)`` around parts of a step, ``step()`` after each, ``close()``."""

    def __init__(
        self, config: ProfileConfig, folder: Path, *, rank: int, device: torch.device, log: LogFn
    ) -> None:
        """Start a profile if the config asks for it.

        Args:
            config: which tool, and which steps.
            folder: the attempt's ``profiles``; made when there is something to write.
            rank: its trace is named after it.
            device: cpu or a CUDA device.
            log: prints what was written.
        """
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
