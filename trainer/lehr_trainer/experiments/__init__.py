"""The tables of ``lehr bench``: published trainings and techniques, one training step per row.

Each row is measured in processes of its own, by the trainer's own ``TrainStep`` (measure.py). This
file is pure: names can be checked on a machine without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lehr_trainer.configs.presets import MODEL_PRESETS

SECTIONS: dict[str, str] = {
    "target": "the 1B model at 64 sequences a step, in ways to a high MFU, also in FP8",
    "ranks": "1, 2, 4 and 8 GPUs, with the same work on each",
    "losses": "each cross entropy",
    "checkpointing": "activation checkpointing by part of the block",
    "precision": "fp32, TF32, bf16, fp16",
    "fp8": "the FP8 recipes beside bf16",
    "compile": "eager and each way of compiling",
    "options": "joint products and a bf16 residual stream",
    "optimizers": "AdamW plain, fused and in 8 bits, Muon and its changes",
    "masks": "document masks",
    "attention": "attention kernels, eager and compiled",
    "context": "attention by sequence length, at the same tokens a step",
    "batch": "sequences in a forward pass",
}
"""Subject of each table of the GPU bench, most important first: its budget may end before the
last.
"""

TABLES: dict[str, str] = {
    "ladder": "optimizations added one by one, at the same tokens a step",
    **SECTIONS,
    "gpu": "all tables but the ladder; continues where it stopped",
}
"""Subject of each table, by name."""


@dataclass(frozen=True)
class Size:
    """A model and a batch; ``[sequences, sequence_length]`` is what an optimizer step sees."""

    name: str
    model: dict[str, Any]
    sequences: int
    sequence_length: int
    turns: int
    """How often the steps of a row are timed; the median counts."""
    steps: int
    """Optimizer steps in a turn."""

    @property
    def tokens(self) -> int:
        return self.sequences * self.sequence_length

    def with_batch(self, sequences: int | None, sequence_length: int | None) -> Size:
        length = sequence_length or self.sequence_length
        return replace(self, sequences=sequences or self.sequences, sequence_length=length)


_TINY = {**MODEL_PRESETS["tiny"].values, "hidden_size": 64, "intermediate_size": 128}
_SMALL = {
    **MODEL_PRESETS["tiny"].values,
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
}
_1B = MODEL_PRESETS["llama-1b"].values

SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        Size("tiny", {**_TINY, "num_hidden_layers": 2}, 4, 64, turns=2, steps=1),
        Size("small", _SMALL, 4, 256, turns=4, steps=2),
        Size("gpt2-134m", MODEL_PRESETS["gpt2-134m"].values, 64, 512, turns=4, steps=10),
        Size("llama-1b-64x2048", _1B, 64, 2048, turns=4, steps=3),
    )
}
"""By name. tiny: seconds, for tests. small: a minute or two on two CPU cores. The others
are those of docs/reference-runs.md: GPT-2 at [64, 512], llama-1b at [64, 2048]."""
