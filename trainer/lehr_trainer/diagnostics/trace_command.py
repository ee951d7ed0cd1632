"""What a config will take, as JSON: nothing is trained, no data and no GPU is needed.

``lehr_trainer trace RUN_DIR``: the memory of its step, traced on fake tensors.
``lehr_trainer count RUN_DIR``: the parameters of its model, built without memory for its weights;
of the project's own, too, if the config has one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.planning.memory import MemoryMoment, memory_by_stage
from lehr_trainer.runtime import launch

if TYPE_CHECKING:
    from lehr_trainer.diagnostics.memory_trace import MemoryTrace


def trace(arguments: Sequence[str]) -> int:
    """Run ``lehr_trainer trace``; returns the exit code."""
    parser = _parser(
        "trace",
        "The memory of a step by phase and kind, on fake tensors, beside the plan's formula for "
        "the same device. Prints JSON.",
    )
    parser.add_argument("--ranks", type=int, default=1, help="that share each step's batch")
    given = parser.parse_args(arguments)

    def traced(config: TrainConfig) -> dict[str, Any]:
        if given.ranks < 1:
            raise BadConfig(f"--ranks is {given.ranks}; it must be at least 1")
        # Import torch only when the config is known to be good.
        from lehr_trainer.diagnostics.memory_trace import trace_memory

        return as_json(trace_memory(config, given.ranks))

    return _print(given.run_dir, traced)


def count(arguments: Sequence[str]) -> int:
    """Run ``lehr_trainer count``; returns the exit code."""

    def counted(config: TrainConfig) -> dict[str, Any]:
        from lehr_trainer.parts import built_counts

        total, looked_up = built_counts(config)
        return {"parameters": total, "looked_up": looked_up}

    about = "The parameters of a config's model, counted by building it. Prints JSON."
    return _print(_parser("count", about).parse_args(arguments).run_dir, counted)


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m lehr_trainer {command}", description=about)
    parser.add_argument("run_dir", help="a folder with a config.yaml; - reads JSON from stdin")
    return parser


def _print(run_dir: str, compute: Callable[[TrainConfig], dict[str, Any]]) -> int:
    try:
        print(json.dumps(compute(read_config(run_dir))))
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
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
                "stage": stage.stage,
                "shape": list(stage.shape),
                "traced": _phases(stage.phases),
                "planned": _phases(plan.phases),
            }
            for stage, plan in zip(trace.stages, plans, strict=True)
        ],
    }


def _phases(phases: dict[str, MemoryMoment]) -> dict[str, dict[str, int]]:
    return {name: {**asdict(moment), "total": moment.total} for name, moment in phases.items()}
