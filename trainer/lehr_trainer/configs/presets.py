"""Named model shapes, as plain values.

``model: llama-1b`` means the whole shape; ``model: {preset: llama-1b, num_hidden_layers: 8}``
changes a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lehr_trainer.configs.shapes import GPT2_134M, GPT2_SMALL, GPT2_TINY
from lehr_trainer.errors import UnknownPreset


@dataclass(frozen=True)
class ModelPreset:
    summary: str
    values: dict[str, Any]


_LLAMA_1B: dict[str, Any] = {
    "kind": "llama",
    "vocab_size": 2**17,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500_000.0,
    "norm_eps": 1e-5,
    "tie_embeddings": True,
}

MODEL_PRESETS: dict[str, ModelPreset] = {
    "llama-1b": ModelPreset("1.24B parameters: 16 layers, tied embeddings, 2^17 tokens", _LLAMA_1B),
    "llama-1b-8layer": ModelPreset(
        "the LR grid's: llama-1b with 8 layers", {**_LLAMA_1B, "num_hidden_layers": 8}
    ),
    "tiny": ModelPreset(
        "for a laptop and for tests: seconds on two CPU cores",
        {
            "kind": "llama",
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_theta": 10_000.0,
            "norm_eps": 1e-5,
            "tie_embeddings": True,
            "max_sequence_length": 2048,
        },
    ),
    "gpt2": ModelPreset("the published GPT-2 small", GPT2_SMALL),
    "gpt2-134m": ModelPreset(
        "GPT-2 Small class: 32,000 tokens, 512 positions, untied head", GPT2_134M
    ),
    "gpt2-tiny": ModelPreset("GPT-2 for a laptop and for tests", GPT2_TINY),
}


def expand_model_preset(raw: Any) -> Any:
    """Replace a model's preset, if it names one, by the preset's values.

    Raises:
        UnknownPreset: no preset has that name.
    """
    if isinstance(raw, str):
        raw = {"preset": raw}
    if not isinstance(raw, dict) or "preset" not in raw:
        return raw
    name = raw["preset"]
    if not isinstance(name, str) or name not in MODEL_PRESETS:
        raise UnknownPreset(str(name), sorted(MODEL_PRESETS))
    rest = {key: value for key, value in raw.items() if key != "preset"}
    return {**MODEL_PRESETS[name].values, **rest}
