"""The sizes at which an experiment can run: for a test, for a laptop, and as published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lehr_trainer.configs.presets import MODEL_PRESETS


@dataclass(frozen=True)
class Size:
    """A model and a batch; ``[sequences, sequence_length]`` is what an optimizer step sees."""

    name: str
    model: dict[str, Any]
    sequences: int
    sequence_length: int
    turns: int
    """Number of turns of each row."""
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
