"""What fits where: models of 1 to 13 B parameters on 8 to 64 GPUs, the trace of a step beside the formula.

    python tests/bench/scale.py --write docs/scale.md

No GPU is needed: the trainer's own step runs on fake tensors and a process group that sends nothing.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from lehr.analysis.plan_fit import usable_bytes
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.memory_trace import trace_memory
from lehr_trainer.planning.counts import bytes_between_nodes, flops_per_token
from lehr_trainer.planning.hardware import gpu_of_kind
from lehr_trainer.planning.memory import training_memory

LENGTH = 2048


def _shape(layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int) -> dict[str, Any]:
    return {
        "kind": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_embeddings": hidden < 4096,
    }


SHAPES = {
    "1B": _shape(16, 2048, 8192, 32, 8, 2**17),
    "3B": _shape(28, 3072, 8192, 24, 8, 128_256),
    "7B": _shape(32, 4096, 11_008, 32, 32, 32_000),
    "8B": _shape(32, 4096, 14_336, 32, 8, 128_256),
    "13B": _shape(40, 5120, 13_824, 40, 40, 32_000),
}
"""llama-1b, and the shapes of Llama 3.2 3B, Llama 2 7B, Llama 3 8B and Llama 2 13B."""


def config(model: str, ranks: int, **changes: Any) -> TrainConfig:
    """Return a training of two micro-batches of one sequence on each rank, as for a GPU."""
    micro_batch = changes.pop("micro_batch", 1)
    batch = {"sequences": 2 * micro_batch * ranks, "sequence_length": LENGTH}
    return TrainConfig.model_validate(
        {
            "model": SHAPES[model],
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {**batch, "micro_batch": micro_batch},
            "steps": 100,
            **changes,
        }
    )


def traced(model: str, ranks: int, **changes: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each phase of a step as traced, and by the formula for that config."""
    trace = trace_memory(config(model, ranks, **changes), ranks)
    phases = trace.stages[0].phases, training_memory(trace.config, ranks).phases
    measured, planned = ({name: m.total for name, m in each.items()} for each in phases)
    return measured, planned


USABLE = [usable_bytes(gpu_of_kind(name)) for name in ("A100 40GB", "H100", "H200")]
TOKENS = 2**20  # Of a step, for the estimates of MFU.
MFU, PEAK = 0.553, 989.4e12
"""Of llama-1b in micro-batches of 8 on one H200, measured (docs/benchmarks.md); dense FLOP/s."""
ROWS = """
8 none adamw none, 8 optimizer adamw none, 8 all adamw none, 8 all adamw block, 16 all adamw block,
64 node adamw block, 64 node muon block, 64 optimizer adamw block, 64 all adamw none, 64 all adamw block
"""


def row(model: str, ranks: int, shard: str, optimizer: str, policy: str) -> str:
    """Trace one configuration and return its line of the table."""
    changes: dict[str, Any] = {
        "parallel": {"shard": shard},
        "optimizer": {"name": optimizer},
        "activation_checkpointing": {"policy": policy},
    }
    sized = partial(config, model, ranks, **changes)
    traced_gb, formula_gb = (max(each.values()) / 1e9 for each in traced(model, ranks, **changes))
    peaks = {
        size: training_memory(sized(micro_batch=size), ranks).peak for size in (16, 8, 4, 2, 1)
    }
    fitting = [next((n for n, peak in peaks.items() if peak <= room), None) for room in USABLE]
    sizes = " / ".join(str(size or "-") for size in fitting)
    mfu = "-" if fitting[1] is None else estimated_mfu(sized(micro_batch=fitting[1]), ranks)
    return (
        f"| {model} | {ranks} | {shard} | {optimizer} | {policy} | {traced_gb:.1f} "
        f"| {formula_gb:.1f} | {formula_gb / traced_gb - 1:+.1%} | {sizes} | {mfu} |"
    )


def estimated_mfu(train: TrainConfig, ranks: int) -> str:
    """Return the MFU where nothing hides the link, and where all of it is hidden; for each link."""
    batch = train.batch.model_copy(update={"sequences": TOKENS // LENGTH})
    train = train.model_copy(update={"batch": batch})
    useful_s = TOKENS * flops_per_token(train.model, LENGTH) / (ranks * PEAK)
    step_s = useful_s / MFU * train.activation_checkpointing.time_factor
    sent = 8 * bytes_between_nodes(train, nodes=ranks // 8, ranks=ranks)
    shares = []
    for link_s in (sent / 400e9, sent / 100e9):  # Assumed speeds of a node, in bit/s.
        ends = (f"{useful_s / s:.0%}" for s in (step_s + link_s, max(step_s, link_s)))
        shares.append(" to ".join(dict.fromkeys(ends)))
    return " / ".join(dict.fromkeys(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--write", type=Path, help="the page whose lines of these are renewed")
    options = parser.parse_args()
    for model in options.models:
        lines = []
        for text in ROWS.replace("\n", " ").split(","):
            ranks, *kinds = text.split()
            lines.append(row(model, int(ranks), *kinds))
            print(lines[-1], flush=True)
        if options.write:
            page = options.write.read_text().splitlines()
            start = next(n for n, line in enumerate(page) if line.startswith("|---|---:|")) + 1
            end = page.index("", start)
            others = [line for line in page[start:end] if f"| {model} |" not in line]
            page[start:end] = sorted(
                others + lines, key=lambda line: [*SHAPES].index(line.split()[1])
            )
            options.write.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
