"""Weights and config of a model, under the names that ``transformers`` uses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lehr_trainer.configs.shapes import GPT2Config, LlamaConfig, attention_scale, output_multiplier
from lehr_trainer.data.tokenizers import ByteTokenizer, JsonTokenizer, TekkenTokenizer, Tokenizer
from lehr_trainer.errors import BadConfig

END_OF_BYTES = "<|endoftext|>"
"""Name of the byte tokenizer's token 256."""
_TEKKEN_NAMES = {0: "<unk>", 1: "<s>", 2: "</s>", 11: "<pad>"}
"""Names of tekken's special tokens; the others get a number, since no training uses them."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens before and after a document, and of the one that fills a batch."""

    bos: int | None
    eos: int | None
    pad: int | None


def write_tokenizer(
    tokenizer: Tokenizer, out_dir: Path, *, longest: int, chat_template: str | None = None
) -> SpecialIds:
    """Write ``tokenizer.json``, which ``AutoTokenizer`` loads, and ``tokenizer_config.json``.

    It gives the same tokens as the training did: no token is put before or after a text. Documents
    were separated by the end-of-document token alone, so the model saw that token before each
    document, and it is the first token (bos) too. ``longest`` is what the model can read, in
    tokens; ``chat_template`` the Jinja text that writes conversations as the training did.
    """
    if isinstance(tokenizer, ByteTokenizer):
        fast, eos, pad = _of_bytes(), END_OF_BYTES, END_OF_BYTES
    elif isinstance(tokenizer, TekkenTokenizer):
        fast, eos, pad = _of_tekken(tokenizer), _TEKKEN_NAMES[tokenizer.eos_id], "<pad>"
    else:
        assert isinstance(tokenizer, JsonTokenizer)
        fast, eos, pad = _of_json(tokenizer)
    fast.save(str(out_dir / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos,
        "eos_token": eos,
        "pad_token": pad,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        described["chat_template"] = chat_template
    text = json.dumps(described, indent=2, ensure_ascii=False)
    (out_dir / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")
    return SpecialIds(tokenizer.eos_id, tokenizer.eos_id, int(fast.token_to_id(pad)))


def _of_bytes() -> Any:
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers

    vocab = {character: byte for byte, character in enumerate(_characters())}
    fast = Fast(models.BPE(vocab=vocab, merges=[]))
    return _on_bytes(fast, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), [
        END_OF_BYTES
    ])  # fmt: skip


def _of_tekken(tokenizer: TekkenTokenizer) -> Any:
    """Convert tiktoken's ranks to merges: each pair of tokens that makes a token, by its rank.

    Transformers' own converter does the same, but needs ``transformers``.
    """
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    characters = _characters()
    ids = tokenizer.token_ids
    names = {token: "".join(characters[byte] for byte in token) for token in ids}
    merges: list[tuple[str, str]] = []
    for token in ids:
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        merges += [
            (names[left], names[right]) for left, right in splits if left in ids and right in ids
        ]
    special = {
        _TEKKEN_NAMES.get(number, f"<SPECIAL_{number}>"): number
        for number in range(tokenizer.vocab_size - len(ids))
    }
    vocab = {**special, **{names[token]: number for token, number in ids.items()}}
    # A piece that is a token itself is not merged, as in tiktoken.
    fast = Fast(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tokenizer.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _on_bytes(fast, pieces, [_TEKKEN_NAMES[tokenizer.eos_id], "<pad>"])


def _on_bytes(fast: Any, pieces: Any, special: list[str]) -> Any:
    from tokenizers import AddedToken, decoders

    fast.pre_tokenizer = pieces
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return fast


def _of_json(tokenizer: JsonTokenizer) -> tuple[Any, str, str]:
    """Return the same tokenizer without what puts tokens around a text, and its eos and pad."""
    fast = tokenizer.copy()
    sample = "a b"
    if fast.encode(sample).ids != fast.encode(sample, add_special_tokens=False).ids:
        # For example Llama's, which puts a first token before each text: training had none.
        from tokenizers import processors

        fast.post_processor = processors.Sequence([])
    eos = str(fast.id_to_token(tokenizer.eos_id))
    pad = tokenizer.special_token("pad_token")
    return fast, eos, pad if pad and fast.token_to_id(pad) is not None else eos


def _characters() -> list[str]:
    """Return GPT-2's character for each byte: printable ones are themselves, the others follow 255.

    ``tokenizers`` has the same table, but only as a set without an order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


_LAST_NORM = ("norm.weight", "ln_f.weight", "ln_f.bias")


def fold_multipliers(
    model: LlamaConfig | GPT2Config, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights with which the standard model computes what ``model`` does under muP.

    Queries take the attention's scale, and the last norm takes the head's. A training that goes on
    from such weights is not muP any more. In the standard parametrization nothing changes.
    """
    scale = attention_scale(model)
    if scale is None:
        return dict(tensors)
    # Scores are linear in the query, and so are rotary positions.
    query = scale * math.sqrt(model.head_size)
    queries = ".q_proj." if model.qk_norm == "none" else ".q_norm."
    folded = {}
    for name, tensor in tensors.items():
        if name in _LAST_NORM:
            folded[name] = tensor * output_multiplier(model)
        elif queries in name:
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
    special = {"bos_token_id": ids.bos, "eos_token_id": ids.eos, "pad_token_id": ids.pad}
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_json(out_dir / "config.json", {**described, **special})
    _write_json(out_dir / "generation_config.json", special)
    contiguous = {name: tensor.contiguous() for name, tensor in named.items()}
    save_file(contiguous, out_dir / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_CLASSES = {
    ("pre", "none", False): ("llama", "LlamaForCausalLM"),
    ("pre", "none", True): ("ministral", "MinistralForCausalLM"),
    ("pre", "head", False): ("qwen3", "Qwen3ForCausalLM"),
    ("pre", "head", True): ("qwen3", "Qwen3ForCausalLM"),
    ("post", "whole", False): ("olmo2", "Olmo2ForCausalLM"),
    ("post", "whole", True): ("olmo3", "Olmo3ForCausalLM"),
}
"""Classes of ``transformers`` by norm, qk_norm and whether there are windows. MLPs are SwiGLUs."""


def transformers_class(model: LlamaConfig) -> tuple[str, str]:
    """Return model type and class of ``transformers`` that computes what ``model`` does.

    Raises:
        BadConfig: none does.
    """
    kind, name = _CLASSES.get((model.norm, model.qk_norm, model.window is not None), ("", ""))
    own_head = model.head_size != model.hidden_size // model.num_attention_heads
    lacking = {
        f"mlp {model.mlp}": model.mlp != "swiglu",
        "logit_softcap": model.logit_softcap is not None,
        "attention_bias": model.attention_bias and kind == "ministral",
        "mlp_bias": model.mlp_bias and kind != "llama",
        "head_dim": own_head and kind.startswith("olmo"),
    }
    if kind and not any(lacking.values()):
        return kind, name
    window = "a window" if model.window is not None else "no window"
    fields = [f"norm {model.norm}", f"qk_norm {model.qk_norm}", window]
    fields += [field for field, is_set in lacking.items() if is_set]
    raise BadConfig(
        f"export is not possible: transformers has no class for a model with {', '.join(fields)}; "
        "the weights in its checkpoints are safetensors"
    )


def _llama(
    model: LlamaConfig, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model_type, architecture = transformers_class(model)
    named = {
        name if name.startswith("lm_head.") else f"model.{name}": tensor
        for name, tensor in tensors.items()
    }
    longest = model.max_sequence_length
    rope: dict[str, Any] = {"rope_type": "default"}
    yarn = model.rope_scaling
    if yarn is not None and yarn.kind == "linear":
        rope = {"rope_type": "linear", "factor": yarn.factor}
    elif yarn is not None:
        # Releases before 5 take this ratio for the factor, whatever the factor says.
        longest = round(yarn.factor * yarn.original_max_sequence_length)
        rope = {
            "rope_type": yarn.kind,
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_max_sequence_length,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
        }
    rope_parameters: dict[str, Any] = {**rope, "rope_theta": model.rope_theta}
    kinds = ["sliding_attention" if window else "full_attention" for window in model.windows]
    if model_type == "olmo3":
        rope_parameters = dict.fromkeys(sorted(set(kinds)), rope_parameters)
    windows: dict[str, Any] = {}
    if model.window is not None:
        windows = {"sliding_window": model.window.size, "layer_types": kinds}
        windows |= {"use_sliding_window": True} if model_type == "qwen3" else {}
    described = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": longest,
        "rms_norm_eps": model.norm_eps,
        # transformers 5 reads the first key, earlier releases read the others.
        "rope_parameters": rope_parameters,
        "rope_theta": model.rope_theta,
        **({"rope_scaling": rope} if model.rope_scaling else {}),
        "attention_bias": model.attention_bias,
        **({"mlp_bias": model.mlp_bias} if model_type == "llama" else {}),
        **windows,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": "float32",
    }
    return named, described
