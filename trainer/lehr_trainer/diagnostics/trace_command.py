"""``lehr_trainer trace RUN_DIR``: the memory of a config's step, traced on fake tensors, as JSON.

Nothing is trained, no data and no GPU is needed, and the run is not changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.planning.memory import memory_by_stage
from lehr_trainer.planning.moments import MemoryMoment
from lehr_trainer.runtime import launch

if TYPE_CHECKING:
    from lehr_trainer.diagnostics.memory_trace import MemoryTrace


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer trace",
        description="The memory of a step by phase and kind, on fake tensors, beside the plan's "
        "formula for the same device. Prints JSON.",
    )
    parser.add_argument("run_dir", help="a folder with a config.yaml; - reads JSON from stdin")
    parser.add_argument("--ranks", type=int, default=1, help="that share each step's batch")
    given = parser.parse_args(arguments)
    try:
        if given.ranks < 1:
            raise BadConfig(f"--ranks is {given.ranks}; it must be at least 1")
        config = read_config(given.run_dir)
        # Import torch only when the config is known to be good.
        from lehr_trainer.diagnostics.memory_trace import trace_memory

        trace = trace_memory(config, given.ranks)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(trace)))
    return 0


def read_config(run_dir: str) -> TrainConfig:
    """Read the config of a run directory, or from standard input if it is ``-``.

    Raises:
        BadConfig: it is not a config.
    """
    if run_dir != "-":
        return launch.read_config(Path(run_dir) / layout.CONFIG)
    try:
        return TrainConfig.model_validate_json(sys.stdin.read())
    except ValidationError as error:
        raise BadConfig(f"standard input is not a config: {error.errors()[0]['msg']}") from None


def as_json(trace: MemoryTrace) -> dict[str, Any]:
    """Return the trace, and the plan's formula for what was traced."""
    plans = memory_by_stage(trace.config, trace.world_size)
    return {
        "device": trace.device,
        "ranks": trace.world_size,
        "notes": list(trace.notes),
        "checkpoint_copy_bytes": trace.checkpoint_copy,
        "stages": [
            {
                "shape": list(stage.shape),
                "traced": _phases(stage.phases),
                "planned": _phases(plan.phases),
            }
            for stage, plan in zip(trace.stages, plans, strict=True)
        ],
    }


def _phases(phases: dict[str, MemoryMoment]) -> dict[str, dict[str, int]]:
    return {name: {**asdict(moment), "total": moment.total} for name, moment in phases.items()}
