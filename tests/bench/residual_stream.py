"""What a bf16 residual stream costs in loss, beside the noise between seeds.

Trains one small, deep Llama in bf16 with the residual stream in fp32 and in bf16, with the same
seeds, on Python's own sources, and prints the final val/loss of each. The difference is taken by
seed, so that the noise that both share cancels.

    python tests/bench/residual_stream.py [--layers 12] [--steps 400] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    given = parser.parse_args()
    losses: dict[str, list[float]] = {"fp32": [], "bf16": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            for residual, found in losses.items():
                found.append(final_loss(Path(folder, f"{residual}-{seed}"), residual, seed, given))
                print(f"seed {seed}, residual {residual}: val/loss {found[-1]:.4f}", flush=True)
    differences = [b - a for a, b in zip(losses["fp32"], losses["bf16"], strict=True)]
    report = {
        "val/loss": losses,
        "seeds' standard deviation, fp32": statistics.stdev(losses["fp32"]),
        "bf16 less fp32, by seed": differences,
        "mean difference": statistics.mean(differences),
        "its standard error": statistics.stdev(differences) / len(differences) ** 0.5,
    }
    print(json.dumps(report, indent=1))


def final_loss(folder: Path, residual: str, seed: int, given: argparse.Namespace) -> float:
    config: dict[str, Any] = {
        "model": {"preset": "tiny", "num_hidden_layers": given.layers},
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 2_000_000},
        "batch": {"sequences": 8, "sequence_length": 64},
        "steps": given.steps,
        "seed": seed,
        "optimizer": {"lr": given.lr},
        "precision": {"compute": "bf16", "residual": residual},
        "validation": {"tokens": 65536, "every": given.steps},
        "checkpoint": {"every": 0, "save_last": False},
        "device": "cpu",
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    subprocess.run(
        [sys.executable, "-m", "lehr_trainer", folder],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    events = (folder / "attempt-1/events.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in events]
    return float([one["values"]["val/loss"] for one in records if one["kind"] == "evaluation"][-1])


if __name__ == "__main__":
    main()
