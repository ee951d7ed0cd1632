"""Train the noisy sweeps of the verdict: six families of 10 learning rates x 10 seeds on one CPU.

The families differ in optimizer, schedule, size and batch. Each run learns the text of Python's
standard library, byte by byte, by the real trainer on one thread. The table has the validation
loss of each run at its end and before it: how it scatters around its own curve is one witness of
the noise. A run without a loss at its last step has diverged.

Resumable: runs that are in the table are not trained again. 600 runs took about 80 CPU-minutes.

    python tests/bench/lr_trainings.py --folder /tmp/trainings [--workers 2]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml

from lehr_testing.trainer import training
from lehr_trainer.contract import layout

OUT = Path(__file__).parents[1] / "data" / "lr_trainings.csv"
FIELDS = ("family", "lr", "seed", "loss", "earlier")
RATES = 10
FACTOR = 1.7
SEEDS = 10
_SGD = """
import sys, types
import torch
part = types.ModuleType("sgd_part")
part.build = lambda model, config: torch.optim.SGD(
    model.parameters(), lr=config.lr, momentum=0.9
)
sys.modules["sgd_part"] = part
"""


LLAMA = {
    "preset": "tiny",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
GPT2 = {
    "preset": "gpt2",
    "vocab_size": 512,
    "max_sequence_length": 128,
    "hidden_size": 48,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
}


class Family(NamedTuple):
    """Trainings that differ in nothing but learning rate and seed."""

    lowest: float
    """The lowest learning rate; each other is ``FACTOR`` times the one before."""
    steps: int
    batch: tuple[int, int]
    """Sequences and their length."""
    model: dict[str, Any] = LLAMA
    schedule: dict[str, Any] = {"name": "cosine", "warmup_ratio": 0.1}
    optimizer: dict[str, Any] = {}
    more: dict[str, Any] = {}
    code: str = ""


FAMILIES = {
    "adamw-cosine": Family(5e-4, 200, (16, 64)),
    "adamw-wsd-small-batch": Family(
        2.5e-4, 300, (4, 64), schedule={"name": "wsd", "warmup_ratio": 0.05, "decay_ratio": 0.2}
    ),
    "adamw-constant-gpt2": Family(
        4e-4,
        150,
        (8, 128),
        GPT2,
        schedule={"name": "constant", "warmup_ratio": 0.1},
    ),
    "adamw-cosine-wide": Family(
        5e-4,
        120,
        (16, 64),
        {**LLAMA, "hidden_size": 128, "intermediate_size": 384},
        optimizer={"weight_decay": 0.0, "betas": [0.9, 0.99]},
    ),
    "muon-cosine": Family(5e-3, 120, (16, 64), optimizer={"name": "muon", "embedding_lr": 3e-3}),
    "sgd-cosine": Family(
        1e-2,
        200,
        (32, 64),
        more={"parts": {"optimizer": "sgd_part:build"}, "grad_clip": 0},
        code=_SGD,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are trained")
    parser.add_argument("--workers", type=int, default=2, help="runs trained at once")
    options = parser.parse_args()
    trained = set()
    if OUT.exists():
        with OUT.open(encoding="utf-8") as file:
            trained = {(line["family"], line["lr"], line["seed"]) for line in csv.DictReader(file)}
    else:
        OUT.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    # Seed by seed: a table that was cut short has whole sweeps.
    todo = [
        (options.folder, name, rate, seed)
        for seed in range(SEEDS)
        for name in FAMILIES
        for rate in rates(name)
        if (name, f"{rate:g}", str(seed)) not in trained
    ]
    with multiprocessing.Pool(options.workers) as pool:
        for row in pool.imap_unordered(train, todo):
            print(*row, flush=True)
            with OUT.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(row)


def rates(name: str) -> list[float]:
    return [float(f"{FAMILIES[name].lowest * FACTOR**k:.3g}") for k in range(RATES)]


def train(task: tuple[Path, str, float, int]) -> tuple[str, str, int, str, str]:
    """Train one run; return its row of the table."""
    root, name, rate, seed = task
    family = FAMILIES[name]
    sequences, length = family.batch
    folder = root / name / f"{rate:g}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    values = {
        "model": family.model,
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 4_000_000},
        "batch": {"sequences": sequences, "sequence_length": length},
        "steps": family.steps,
        "seed": seed,
        "optimizer": {"lr": rate, **family.optimizer},
        "schedule": family.schedule,
        "validation": {"tokens": 32768, "share": 0.05, "every": family.steps // 10},
        "checkpoint": {"every": 0},
        "diagnostics": {"sample": {"every": 0}},
        "device": "cpu",
        "threads": 1,
        **family.more,
    }
    (folder / layout.CONFIG).write_text(yaml.safe_dump(values), encoding="utf-8")
    with training(folder, data=root / "data", code=family.code) as process:
        process.wait(timeout=600)
    losses = {}
    for path in folder.glob(f"attempt-*/{layout.EVENTS}"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "evaluation" and "val/loss" in record["values"]:
                losses[record["step"]] = float(record["values"]["val/loss"])
    end = losses.pop(family.steps, math.nan)
    earlier = [loss for step, loss in losses.items() if step >= family.steps * 0.6]
    shutil.rmtree(folder)
    return name, f"{rate:g}", seed, f"{end:.5f}", " ".join(f"{loss:.5f}" for loss in earlier)


if __name__ == "__main__":
    main()
