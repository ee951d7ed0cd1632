"""Memory of models of 1 to 13 B parameters on many GPUs: the trace of a step beside the formula.

No GPU is needed: the trainer's own step runs on fake tensors and a process group that sends nothing.
"""

from __future__ import annotations

from typing import Any

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.memory_trace import trace_memory
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
