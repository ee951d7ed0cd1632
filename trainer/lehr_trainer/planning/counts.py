"""Counts of a model's parameters and FLOPs, from its config alone: no torch needed."""

from __future__ import annotations

from dataclasses import replace

from lehr_trainer.configs.sizes import ParameterCounts
from lehr_trainer.configs.train import GPT2Config, LlamaConfig, ModelConfig


def parameter_counts(model: ModelConfig) -> ParameterCounts:
    counts = _gpt2_counts(model) if isinstance(model, GPT2Config) else _llama_counts(model)
    if model.stable_embedding:  # its LayerNorm
        counts = replace(counts, norms=counts.norms + 2 * model.hidden_size)
    return counts


def _gpt2_counts(model: GPT2Config) -> ParameterCounts:
    d, f, layers = model.hidden_size, model.mlp_size, model.num_hidden_layers
    return ParameterCounts(
        embedding=(model.vocab_size + model.max_sequence_length) * d,
        head=0 if model.tie_embeddings else model.vocab_size * d,
        attention=layers * (4 * d * d + 4 * d),
        mlp=layers * (2 * d * f + f + d),
        norms=(2 * layers + 1) * 2 * d,
        matrices=_by_shape([(d, d)] * 4 + [(f, d), (d, f)], layers),
    )


def _llama_counts(model: LlamaConfig) -> ParameterCounts:
    hidden, layers = model.hidden_size, model.num_hidden_layers
    # Each key-value head has the size of a query head, however many query heads share it.
    kv_size = model.num_key_value_heads * (hidden // model.num_attention_heads)
    attention = 2 * hidden * hidden + 2 * hidden * kv_size
    if model.attention_bias:
        attention += 2 * hidden + 2 * kv_size
    mlp = 3 * hidden * model.intermediate_size
    if model.mlp_bias:
        mlp += 2 * model.intermediate_size + hidden
    return ParameterCounts(
        embedding=model.vocab_size * hidden,
        head=0 if model.tie_embeddings else model.vocab_size * hidden,
        attention=layers * attention,
        mlp=layers * mlp,
        norms=(2 * layers + 1) * hidden,
        matrices=_by_shape(
            [(hidden, hidden)] * 2
            + [(kv_size, hidden)] * 2
            + [(model.intermediate_size, hidden)] * 2
            + [(hidden, model.intermediate_size)],
            layers,
        ),
    )


def _by_shape(of_a_layer: list[tuple[int, int]], layers: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((*shape, layers * of_a_layer.count(shape)) for shape in dict.fromkeys(of_a_layer))


def flops_per_token(model: ModelConfig, sequence_length: int) -> float:
    """Count the FLOPs to train on one token: forward and backward, with full attention.

    6 for each weight that a token is multiplied with (2 forward, 4 backward), the head included,
    the embedding look-up not; 12 x layers x hidden x length for the scores and the weighted sums.
    Full attention is the convention of PaLM's MFU, although a causal kernel does half of it.
    Recomputed activations do not count.
    """
    counts = parameter_counts(model)
    multiplied = counts.non_embedding + model.vocab_size * model.hidden_size
    attention = 12 * model.num_hidden_layers * model.hidden_size * sequence_length
    return float(6 * multiplied + attention)
