"""Weights and config of a model, under the names that ``transformers`` uses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lehr_trainer.configs.shapes import GPT2Config, LlamaConfig, attention_scale, output_multiplier
from lehr_trainer.errors import BadConfig
from lehr_trainer.export.tokenizer import SpecialIds

_LAST_NORM = ("norm.weight", "ln_f.weight", "ln_f.bias")


def fold_multipliers(
    model: LlamaConfig | GPT2Config, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights with which the standard model computes what ``model`` does under muP.

    Queries take the attention's scale, and the last norm takes the head's. A training that goes on
    from such weights is not muP any more.

    Args:
        model: its config; in the standard parametrization nothing changes.
        tensors: the model's own state, by name.
    """
    scale = attention_scale(model)
    if scale is None:
        return dict(tensors)
    # Scores are linear in the query, and rotary positions leave its length as it is.
    query = scale * math.sqrt(model.hidden_size // model.num_attention_heads)
    folded = {}
    for name, tensor in tensors.items():
        if name in _LAST_NORM:
            folded[name] = tensor * output_multiplier(model)
        elif ".q_proj." in name:
            folded[name] = tensor * query
        elif ".c_attn." in name:
            joint = tensor.clone()  # Rows of query, key and value.
            joint[: model.hidden_size] *= query
            folded[name] = joint
        else:
            folded[name] = tensor
    return folded


_NO_IDS = SpecialIds(None, None, None)


def write_model(
    model: LlamaConfig | GPT2Config,
    tensors: Mapping[str, Tensor],
    out_dir: Path,
    ids: SpecialIds = _NO_IDS,
) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``generation_config.json``.

    ``ids`` are written even where they are None: the defaults of ``transformers`` are the token ids
    of the published models. ``transformers`` has no muP, so its multipliers go into the weights.

    Raises:
        BadConfig: ``transformers`` has no such model.
    """
    from safetensors.torch import save_file

    if any(name.startswith(("embed_tokens.norm", "wte.norm")) for name in tensors):
        raise BadConfig(
            "a model with model.stable_embedding has a LayerNorm after its embedding, which "
            "transformers' models lack; it cannot be exported"
        )
    tensors = fold_multipliers(model, tensors)
    if isinstance(model, LlamaConfig):
        named, described = _llama(model, tensors)
    else:
        from lehr_trainer.models.gpt2 import to_transformers, transformers_config

        named, described = to_transformers(tensors), transformers_config(model)
    special = {
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "pad_token_id": ids.pad,
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_json(out_dir / "config.json", {**described, **special})
    _write_json(out_dir / "generation_config.json", special)
    contiguous = {name: tensor.contiguous() for name, tensor in named.items()}
    save_file(contiguous, out_dir / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _llama(
    model: LlamaConfig, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    named = {
        name if name.startswith("lm_head.") else f"model.{name}": tensor
        for name, tensor in tensors.items()
    }
    described = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_sequence_length,
        "rms_norm_eps": model.norm_eps,
        # transformers 5 reads the first key, earlier releases read the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "rope_theta": model.rope_theta,
        "attention_bias": model.attention_bias,
        "mlp_bias": model.mlp_bias,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": "float32",
    }
    return named, described
