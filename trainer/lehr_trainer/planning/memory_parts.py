"""The terms of the memory plan that techniques change: recomputation, loss, optimizer. Pure.

Checked against the published measurements of docs/reference-runs.md by
tests/trainer/test_memory_published.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr_trainer.configs.activation_checkpointing import ActivationCheckpointingConfig
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning.counts import ParameterCounts

FP32, BF16 = 4, 2


@dataclass(frozen=True)
class LayerBytes:
    """What autograd keeps of one layer for a token, with a fused norm and attention kernel."""

    block_input: int
    """The residual stream, fp32."""
    middle: int
    """The residual stream between attention and MLP, and both norms' results."""
    attention: int
    """Query, key, value, the result, and the log of each head's softmax sum (fp32)."""
    mlp: int

    @property
    def all(self) -> int:
        return self.block_input + self.middle + self.attention + self.mlp

    def dropped(self, config: ActivationCheckpointingConfig) -> int:
        """What a layer under that policy computes again rather than keeps.

        A checkpointed part keeps its input, so that of attention and MLP stays: the norm's
        result. Norms and embedding keep next to nothing that is not another's input.
        """
        return {
            "none": 0,
            "embedding": 0,
            "norms": 0,
            "attention": self.attention,
            "swiglu": self.mlp,
            "block": self.all - self.block_input,
        }[config.policy]


def layer_bytes(model: ModelConfig, *, half: bool, length_of_scores: int = 0) -> LayerBytes:
    """``length_of_scores``: the sequence's, if the kernel keeps all scores (in fp32); else 0."""
    width, hidden, heads = BF16 if half else FP32, model.hidden_size, model.num_attention_heads
    if isinstance(model, GPT2Config):
        kv, inner, statistics = 2 * hidden, 2 * model.mlp_size, 4 * FP32
    else:
        kv = 2 * model.num_key_value_heads * (hidden // heads)
        # The SwiGLU's two products, SiLU of one, and their product.
        inner, statistics = 4 * model.intermediate_size, 2 * FP32
    scores = FP32 * heads * length_of_scores
    return LayerBytes(
        block_input=FP32 * hidden,
        middle=FP32 * hidden + 2 * width * hidden + statistics,
        attention=width * (2 * hidden + kv) + FP32 * heads + scores,
        mlp=width * inner,
    )


def recomputing_layers(config: TrainConfig) -> int:
    if config.activation_checkpointing.policy in {"none", "embedding"}:
        return 0
    return math.ceil(config.model.num_hidden_layers / config.activation_checkpointing.every)


def weight_copies(config: TrainConfig, counts: ParameterCounts, *, half: bool) -> int:
    """16-bit copies of the linears' weights that live until backward.

    Those of a recomputed part are made again in backward; compiled code casts as it multiplies.
    """
    if not half or config.compile.scope != "none":
        return 0
    share = recomputing_layers(config) / config.model.num_hidden_layers
    again = {"attention": counts.attention, "swiglu": counts.mlp, "block": counts.layers}
    return round(
        BF16 * (counts.layers - share * again.get(config.activation_checkpointing.policy, 0))
    )


def loss_bytes(config: TrainConfig, tokens: int, *, half: bool) -> int:
    """The most that the head and its cross entropy hold at once, forward or backward.

    In bytes a logit: ``standard`` holds log-softmax, its gradient and the logits' (12);
    ``in_autocast`` has bf16 logits, which the softmax widens as it reads them (10).
    """
    model = config.model
    vocabulary, hidden = model.vocab_size, model.hidden_size
    width, logits, head = BF16 if half else FP32, tokens * vocabulary, vocabulary * hidden
    # Rounded copies of the operands, where they are rounded.
    operands = width * (head + tokens * hidden) if half else 0
    gradients = FP32 * head + width * tokens * hidden
    match config.loss.name:
        case "chunked":
            rows = min(tokens, max(1, config.loss.chunk_mb * 2**20 // (FP32 * vocabulary)))
            # Logits and their log-softmax in fp32; the slope once more in 16 bits.
            chunk = rows * vocabulary * (2 * FP32 + (BF16 if half else 0))
            return chunk + gradients + (BF16 * head if half else 0)
        case "standard":
            return 12 * logits + operands
        case "in_autocast":
            return (10 if half else 12) * logits + operands
        case "bf16_softmax":
            return 4 * BF16 * logits + operands
        case "liger" | "torch_chunked":
            # Both cut rows so that a chunk's logits weigh about as much as the hidden states.
            chunk = tokens * hidden * (2 * FP32)
            return chunk + gradients + operands
        case "cce" | "cce_fp32" | "cce_kahan":
            copies = 2 if config.loss.name == "cce_kahan" else 1
            return copies * gradients + operands


def optimizer_workspace(config: TrainConfig, counts: ParameterCounts) -> int:
    """What the update itself takes for a moment, besides gradients and state."""
    optimizer = config.optimizer
    if isinstance(optimizer, MuonConfig):
        # Of a batch of matrices: the momenta stacked (fp32), and three 16-bit stages of it.
        return 5 * optimizer.batch_mb * 2**20
    if optimizer.name == "adamw" and not optimizer.fused:
        return FP32 * counts.total  # square roots of all second moments at once
    return 0
