"""Named models: ``model: llama-1b`` is the whole shape, ``{preset: llama-1b, ...}`` changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lehr_trainer.errors import UnknownPreset

GPT2_SMALL: dict[str, Any] = {
    "kind": "gpt2",
    "vocab_size": 50_257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_sequence_length": 1024,
}
"""The published model: 124,439,808 parameters."""

GPT2_134M: dict[str, Any] = {
    **GPT2_SMALL,
    "vocab_size": 32_000,
    "tie_embeddings": False,
    "max_sequence_length": 512,
}
"""GPT-2 Small class: 32,000 tokens (int16), 512 positions, 134,601,216 parameters, untied head."""

GPT2_TINY: dict[str, Any] = {
    **GPT2_SMALL,
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_sequence_length": 512,
}
"""For a laptop and for tests."""


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


_LLAMA3 = {"kind": "llama", "vocab_size": 128_256, "norm_eps": 1e-5, "max_sequence_length": 8192}
_QWEN3 = {
    "kind": "llama",
    "vocab_size": 151_936,
    "head_dim": 128,
    "qk_norm": "head",
    "rope_theta": 1e6,
    "norm_eps": 1e-6,
    "max_sequence_length": 32_768,
}
_OLMO2 = {
    "kind": "llama",
    "vocab_size": 100_352,
    "norm": "post",
    "qk_norm": "whole",
    "norm_eps": 1e-6,
    "max_sequence_length": 4096,
}
_SCALED_DOWN = "a scaled-down {} of about 0.1B parameters; not a published one"


def _of(
    family: dict[str, Any], hidden: int, mlp: int, layers: int, heads: int, kv: int, *, tied: bool
) -> dict[str, Any]:
    return {
        **family,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_embeddings": tied,
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
    "llama3-0.1b": ModelPreset(
        _SCALED_DOWN.format("Llama 3"), _of(_LLAMA3, 512, 1536, 12, 8, 4, tied=True)
    ),
    "llama3-1b": ModelPreset("Llama 3.2 1B", _of(_LLAMA3, 2048, 8192, 16, 32, 8, tied=True)),
    "llama3-3b": ModelPreset("Llama 3.2 3B", _of(_LLAMA3, 3072, 8192, 28, 24, 8, tied=True)),
    "llama3-8b": ModelPreset("Llama 3 8B", _of(_LLAMA3, 4096, 14_336, 32, 32, 8, tied=False)),
    "qwen3-0.1b": ModelPreset(
        _SCALED_DOWN.format("Qwen3"), _of(_QWEN3, 512, 1536, 12, 4, 2, tied=True)
    ),
    "qwen3-0.6b": ModelPreset("Qwen3 0.6B", _of(_QWEN3, 1024, 3072, 28, 16, 8, tied=True)),
    "qwen3-1.7b": ModelPreset("Qwen3 1.7B", _of(_QWEN3, 2048, 6144, 28, 16, 8, tied=True)),
    "qwen3-4b": ModelPreset("Qwen3 4B", _of(_QWEN3, 2560, 9728, 36, 32, 8, tied=True)),
    "qwen3-8b": ModelPreset("Qwen3 8B", _of(_QWEN3, 4096, 12_288, 36, 32, 8, tied=False)),
    "olmo2-0.1b": ModelPreset(
        _SCALED_DOWN.format("OLMo 2"), _of(_OLMO2, 512, 1536, 12, 8, 8, tied=True)
    ),
    "olmo2-1b": ModelPreset("OLMo 2 1B", _of(_OLMO2, 2048, 8192, 16, 16, 16, tied=False)),
    "olmo2-7b": ModelPreset("OLMo 2 7B", _of(_OLMO2, 4096, 11_008, 32, 32, 32, tied=False)),
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
