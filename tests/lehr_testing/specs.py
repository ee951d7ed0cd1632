"""Specs of real runs that finish in seconds on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def text_corpus(folder: Path, *, documents: int = 60) -> Path:
    """A folder of small, different, real-looking text files; deterministic."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(documents):
        lines = [
            f"document {n}, line {k}: the lehr warms and cools, {n * k % 97}." for k in range(60)
        ]
        (folder / f"{n:03d}.txt").write_text("\n".join(lines))
    return folder


def train(corpus: Path, *, steps: int = 20, **changes: Any) -> dict[str, Any]:
    """A TrainConfig of a very small model on ``corpus``, deterministic, one CPU thread."""
    values: dict[str, Any] = {
        "model": {
            "preset": "tiny",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        "data": {"corpus": {"kind": "text", "paths": [str(corpus)]}, "tokenizer": "byte"},
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": steps,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every": 5},
        "validation": {"tokens": 512, "share": 0.1, "every": 10},
        "device": "cpu",
        "deterministic": True,
        "threads": 1,
    }
    return {**values, **changes}


def run(
    corpus: Path, name: str, *, gpus: int = 1, steps: int = 20, **changes: Any
) -> dict[str, Any]:
    top = {
        key: changes.pop(key) for key in ("retries", "priority", "time_limit_s") if key in changes
    }
    return {
        "kind": "run",
        "name": name,
        "train": train(corpus, steps=steps, **changes),
        "resources": {"gpus": gpus},
        **top,
    }


def lr_sweep(corpus: Path, name: str, rates: list[float], *, steps: int = 10) -> dict[str, Any]:
    return {
        "kind": "sweep",
        "name": name,
        "method": "grid",
        "metric": {"name": "val/loss", "goal": "minimize"},
        "parameters": {"train.optimizer.lr": {"values": rates}},
        "run": run(corpus, name, steps=steps),
    }
