"""Tokens/s of the loader compared with simple loops, in one run.

    python tests/bench/loader.py [--sequences 64] [--lengths 512 2048]

Prints JSON. Baselines (G): ``torch.tensor`` of a list of slices, and ``np.stack`` of slices;
both make one tensor where the loader makes inputs and targets. The follow-up study's multi-process DataLoader
makes the loader's own batches in worker processes. Each is repeated in turn and its best time
counts, so that other work on the machine disturbs all alike.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lehr_trainer.configs.corpus import StdlibCorpus
from lehr_trainer.configs.train import BatchConfig, DataConfig, ValidationConfig
from lehr_trainer.data.loader import Loader
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData

REPEATS = 5
REQUIRED = 20.0
"""Times the naive loop's tokens/s, at batch 64."""


def naive(
    tokens: np.ndarray, starts: Callable[[int], np.ndarray], length: int
) -> Callable[[int], torch.Tensor]:
    """Build a Python list of slices and pass it to ``torch.tensor``."""
    warnings.filterwarnings("ignore", message="Creating a tensor from a list")

    def make(step: int) -> torch.Tensor:
        batch = []
        for start in starts(step):
            batch.append(tokens[start : start + length])  # noqa: PERF401 - the naive loop is the subject
        return torch.tensor(batch)

    return make


def stacked(
    tokens: np.ndarray, starts: Callable[[int], np.ndarray], length: int
) -> Callable[[int], torch.Tensor]:
    """Stack slices with ``np.stack``, without a second copy."""

    def make(step: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([tokens[s : s + length] for s in starts(step)]))

    return make


class Batches(torch.utils.data.Dataset[Any]):
    """The loader's batches for torch's DataLoader, opened in each worker."""

    def __init__(self, prepared: PreparedData, shape: BatchConfig) -> None:
        self._prepared, self._shape = prepared, shape
        self._loader: Loader | None = None

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, step: int) -> Any:
        if self._loader is None:
            self._loader = Loader(self._prepared, self._shape, seed=0, workers=0)
        return self._loader.batch(step)


def random_starts(tokens: np.ndarray, sequences: int, length: int) -> Callable[[int], np.ndarray]:
    """Drawn one by one, as G draws them: part of what the naive loop costs."""
    return lambda _step: np.array(
        [random.randint(0, len(tokens) - length) for _ in range(sequences)]
    )


def drawn_starts(tokens: np.ndarray, sequences: int, length: int) -> Callable[[int], np.ndarray]:
    rng = np.random.default_rng(0)
    return lambda _step: rng.integers(0, len(tokens) - length, size=sequences)


def best_seconds(makers: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Seconds a batch of each, the best of several rounds in which all take turns."""
    counts = {name: 3 if "torch.tensor" in name else 50 for name in makers}
    best = dict.fromkeys(makers, float("inf"))
    step = dict.fromkeys(makers, 0)
    for _ in range(REPEATS):
        for name, make in makers.items():
            make(step[name])
            began = time.perf_counter()
            for _ in range(counts[name]):
                step[name] += 1
                make(step[name])
            best[name] = min(best[name], (time.perf_counter() - began) / counts[name])
            step[name] += 1
    return best


def waits(get: Callable[[int], Any], steps: int = 150) -> float:
    """Microseconds a step that a training loop with work of its own waits for data (median)."""
    weights = torch.randn(512, 512)
    times = []
    for step in range(steps):
        began = time.perf_counter()
        get(step)
        times.append(time.perf_counter() - began)
        for _ in range(6):
            weights @ weights
    return float(np.median(times[10:]) * 1e6)


def measure(prepared: PreparedData, sequences: int, length: int) -> dict[str, Any]:
    shape = BatchConfig(sequences=sequences, sequence_length=length)
    shard = prepared.directory / "train-00000.bin"
    mapped = np.memmap(shard, dtype=prepared.dtype, mode="r")
    loaded = np.fromfile(shard, dtype=prepared.dtype)
    with (
        Loader(prepared, shape, seed=0, workers=0, loading="memmap") as from_disk,
        Loader(prepared, shape, seed=0, workers=0, loading="preload") as from_memory,
    ):
        seconds = best_seconds(
            {
                "torch.tensor of a list of slices, memmap": naive(
                    mapped, random_starts(mapped, sequences, length), length
                ),
                "torch.tensor of a list of slices, preload": naive(
                    loaded, random_starts(loaded, sequences, length), length
                ),
                "np.stack of slices, memmap": stacked(
                    mapped, drawn_starts(mapped, sequences, length), length
                ),
                "np.stack of slices, preload": stacked(
                    loaded, drawn_starts(loaded, sequences, length), length
                ),
                "loader, memmap": from_disk.batch,
                "loader, preload": from_memory.batch,
            }
        )
    tokens = sequences * length

    def over(baseline: str) -> dict[str, float]:
        return {
            kind: round(seconds[f"{baseline}, {kind}"] / seconds[f"loader, {kind}"], 2)
            for kind in ("memmap", "preload")
        }

    wait_us = {}
    for workers in (0, 1, 2):
        with Loader(prepared, shape, seed=0, workers=workers) as loader:
            wait_us[f"{workers} threads"] = round(waits(loader.batch), 1)
    for workers in (1, 2):
        stream = iter(
            torch.utils.data.DataLoader(
                Batches(prepared, shape), batch_size=None, num_workers=workers, prefetch_factor=4
            )
        )
        wait_us[f"{workers} processes"] = round(waits(lambda _step, s=stream: next(s)), 1)
        del stream
    return {
        "shape": [sequences, length],
        "tokens_per_s": {name: round(tokens / taken) for name, taken in seconds.items()},
        "over_naive": over("torch.tensor of a list of slices"),
        "over_stack": over("np.stack of slices"),
        "wait_us_beside_work": wait_us,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64, help="of a batch")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048], help="in tokens")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Creating a tensor from a list")
    with tempfile.TemporaryDirectory() as folder:
        lines: list[str] = []
        prepared = prepare_dataset(
            DataConfig(corpus=StdlibCorpus(), tokenizer="byte"),
            ValidationConfig(),
            512,
            Path(folder),
            lambda _phase, message, _done: lines.append(message),
        )
        results = [measure(prepared, given.sequences, length) for length in given.lengths]
    holds = min(ratio for result in results for ratio in result["over_naive"].values()) >= REQUIRED
    report = {
        "bench": "loader",
        "cores": len(os.sched_getaffinity(0)),
        "preparation": lines[-1],
        "results": results,
        "required_over_naive": REQUIRED,
        "holds": holds,
    }
    print(json.dumps(report, indent=2))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
