"""The cost of all metrics at their default intervals, as a share of a training.

One training, its own loop; an ordinary step, the same with norms of the parts, and the same with
``quality`` too are timed by turns, in processor time, so that whatever else the machine does
meets all alike. A sample is timed likewise. The cost of an interval is what the step takes more
than its ordinary neighbours, divided by the interval: 50, 100 and 500 steps by default.

    python tests/bench/diagnostics_cost.py [--model tiny] [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr_testing.assembled import assembled
from lehr_trainer.configs.train import DiagnosticsConfig

REQUIRED = 0.01
FAR = 10**9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), given)
    print(json.dumps(report, indent=1))
    return 0 if report["holds"] else 1


def measure(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    training = assembled(folder, config_of(given))
    usual = DiagnosticsConfig()
    kinds: dict[str, DiagnosticsConfig] = {
        "ordinary": switched(parts=False, quality=False),
        "parts": switched(parts=True, quality=False),
        "quality": switched(parts=False, quality=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*kinds, "sample")}
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(0, 0)
        for turn in range(given.rounds + 2):
            for name, diagnostics in kinds.items():
                training.diagnostics_logger._config = training.config.model_copy(
                    update={"diagnostics": diagnostics}
                )
                taken = timed(training.take_step)
                if turn > 1:  # the first two warm caches up
                    seconds[name].append(taken)
            training.diagnostics_logger._config = training.config
            if turn > 1 and turn % 5 == 0:
                seconds["sample"].append(
                    timed(lambda: training.diagnostics_logger.write_sample(500))
                )
    ordinary = statistics.median(seconds["ordinary"])
    # Pair by pair, so that a slow moment counts on both sides.
    more = {
        name: statistics.median(
            a - b for a, b in zip(seconds[name], seconds["ordinary"], strict=True)
        )
        for name in ("parts", "quality")
    }
    more["sample"] = statistics.median(seconds["sample"])
    every = {
        "parts": usual.parts_every,
        "quality": usual.quality_every,
        "sample": usual.sample.every,
    }
    shares = {name: more[name] / every[name] / ordinary for name in more}
    batch = training.config.batch
    return {
        "bench": "diagnostics, share of a training's processor time at default intervals",
        "share": sum(shares.values()),
        "shares": shares,
        "in_ordinary_steps": {name: value / ordinary for name, value in more.items()},
        "every": every,
        "ordinary_step_cpu_ms": 1e3 * ordinary,
        "model": given.model,
        "batch": [batch.sequences, batch.sequence_length],
        "rounds": given.rounds,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "required": REQUIRED,
        "holds": sum(shares.values()) < REQUIRED,
    }


def switched(*, parts: bool, quality: bool) -> DiagnosticsConfig:
    return DiagnosticsConfig(parts_every=1 if parts else FAR, quality_every=1 if quality else FAR)


def timed(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def config_of(given: argparse.Namespace) -> dict[str, object]:
    return {
        "model": given.model,
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 1_000_000},
        "batch": {"sequences": given.sequences, "sequence_length": given.sequence_length},
        "steps": 10**6,
        "validation": {"tokens": 4096, "every": 0},
        "checkpoint": {"every": 0},
        "device": "cpu",
    }


if __name__ == "__main__":
    sys.exit(main())
