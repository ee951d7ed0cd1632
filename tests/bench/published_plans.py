"""Plans beside published training runs: speed and MFU, and the memory of losses.

Each row of ``tests/data/published_training.csv`` is planned as its source describes it. Printed are
the published tokens/s of a GPU, its MFU by our count of FLOPs (which is PaLM's), and the planned
tokens/s. Rows of llm-foundry are those that the planner's MFU was chosen from; the others judge it.

The second table has the memory of the loss of Gemma 2 (2B) on 8,192 tokens, as the authors of Cut
Cross Entropy measured it on an A100 (apple/ml-cross-entropy, README.md), beside our formulas.

Run: python tests/bench/published_plans.py
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.analysis.plan import RunPlan, plan_run
from lehr.specs import RunSpec
from lehr_testing.paths import DATA
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.sizes import HeadSize
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import gpu_of_kind

TABLE = DATA / "published_training.csv"
FITTED = "llm-foundry"
"""The source from which the planner's MFU was chosen."""
GEMMA = HeadSize(tokens=8192, hidden=2304, vocabulary=256_000, half=True)
LOSS_MB = {"standard": 28_000.0, "cce": 1_164.0}
"""Published memory of forward and backward, in MB; ``standard`` is their baseline."""


def main() -> None:
    print(
        "| source | model | GPU | tokens/s a GPU | MFU | planned tokens/s | planned / published |"
    )
    print("|---|---|---|---:|---:|---:|---:|")
    errors: dict[bool, list[float]] = {True: [], False: []}
    for row in rows():
        plan = planned(row)
        tokens = float(row["tokens_per_s_per_gpu"])
        mfu = tokens * flops(row) / peak(row)
        speed = planned_speed(plan)
        errors[row["source"] == FITTED].append(math.log(speed / tokens))
        size = plan.parameters.total / 1e9
        print(
            f"| {row['source']} | {size:.2f} G, {row['layers']} x {row['hidden']}"
            f"{', recomputed' if row['recompute'] != 'none' else ''} | {row['gpus']}x{row['gpu']} "
            f"| {tokens:,.0f} | {mfu:.1%} | {speed:,.0f} | {speed / tokens:.2f} |"
        )
    for fitted, logs in errors.items():
        spread = math.exp(statistics.median([abs(one) for one in logs]))
        worst = math.exp(max(abs(one) for one in logs))
        kind = "rows that the MFU was chosen from" if fitted else "other rows"
        print(f"\n{kind}: {len(logs)}, median factor {spread:.2f}, worst {worst:.2f}")
    print("\n| loss of Gemma 2 2B | published MB | our formula MB | ours / published |")
    print("|---|---:|---:|---:|")
    for name, published in LOSS_MB.items():
        loss = LossConfig(name=name)  # type: ignore[arg-type]
        ours = max(loss.forward_bytes(GEMMA), loss.backward_bytes(GEMMA)) / 2**20
        print(f"| {name} | {published:,.0f} | {ours:,.0f} | {ours / published:.2f} |")


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def planned(row: dict[str, str]) -> RunPlan:
    return plan_run(spec(row))


def planned_speed(plan: RunPlan) -> float:
    """Return tokens/s of one GPU."""
    assert plan.seconds is not None
    return plan.tokens / plan.seconds / plan.gpus


def flops(row: dict[str, str]) -> float:
    return flops_per_token(spec(row).train.model, int(row["sequence_length"]))


def peak(row: dict[str, str]) -> float:
    gpu = gpu_of_kind(row["gpu"].split()[0])
    return gpu.peak_flops["bf16"]


def spec(row: dict[str, str]) -> RunSpec:
    common: dict[str, Any] = {
        "kind": row["kind"],
        "num_hidden_layers": int(row["layers"]),
        "hidden_size": int(row["hidden"]),
        "intermediate_size": int(row["mlp"]),
        "num_attention_heads": int(row["heads"]),
        "vocab_size": int(row["vocabulary"]),
        "max_sequence_length": int(row["sequence_length"]),
        "tie_embeddings": row["tied"] == "yes",
    }
    if row["kv_heads"]:
        common["num_key_value_heads"] = int(row["kv_heads"])
    gpus, micro_batch = int(row["gpus"]), int(row["micro_batch"] or 8)
    return RunSpec.model_validate(
        {
            "name": "published",
            "resources": {"gpus": min(gpus, 8), "nodes": 1, "gpu_type": row["gpu"].split()[0]},
            "train": {
                "model": common,
                "steps": 100,
                "device": "cuda",
                "activation_checkpointing": {"policy": row["recompute"]},
                "batch": {
                    "sequences": micro_batch * min(gpus, 8),
                    "sequence_length": int(row["sequence_length"]),
                    "micro_batch": micro_batch,
                },
                "data": {"corpus": {"kind": "stdlib"}},
            },
        }
    )


if __name__ == "__main__":
    main()
