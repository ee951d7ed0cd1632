"""A decoder with RMSNorm, rotary positions and grouped-query attention, as its config describes it.

Parameters are named as in the class of ``transformers`` that has such blocks (Llama's, Qwen3's,
OLMo 2's), so a checkpoint maps on to it by the prefix ``model.``. The model ends at its last norm:
the head's product belongs to the loss (losses/chunked.py), which alone decides in what precision
and in how many pieces it is made.

Shapes: B sequences, T positions, H hidden, N heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from lehr_trainer.configs.shapes import Norm, attention_scale, output_multiplier
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.attention import attend
from lehr_trainer.models.documents import attention_mask
from lehr_trainer.models.shared_layers import begin_stream, operand, products


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.residual_dtype: torch.dtype | None = None
        """Of the residual stream; None: that of the embedding."""
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.windows = config.windows
        self.layers = nn.ModuleList(LlamaBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.output_multiplier = output_multiplier(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos, sin = rotary_tables(config)
        # Not persistent: they follow from the config, so no checkpoint carries them.
        self.register_buffer("rotary_cos", cos, persistent=False)
        self.register_buffer("rotary_sin", sin, persistent=False)
        self.rotary_cos: Tensor
        self.rotary_sin: Tensor

    def forward(
        self,
        tokens_BT: Tensor,
        document_ids_BT: Tensor | None = None,
    ) -> Tensor:
        """Compute the head's input [B, T, H]; with ids, documents are masked.

        It is the last norm's output, under muP times ``output_multiplier``.

        Rotary positions run through the whole sequence: attention depends only on their
        differences.
        """
        length = tokens_BT.shape[1]
        rotary = self.rotary_cos[:length], self.rotary_sin[:length]
        masks = {
            window: attention_mask(tokens_BT, document_ids_BT, window)
            for window in dict.fromkeys(self.windows)
        }
        x_BTH = begin_stream(self.embed_tokens(tokens_BT), self.residual_dtype)
        for layer, window in zip(self.layers, self.windows, strict=True):
            x_BTH = layer(x_BTH, rotary, masks[window])
        hidden_BTH: Tensor = self.norm(x_BTH)
        return hidden_BTH if self.output_multiplier == 1.0 else hidden_BTH * self.output_multiplier

    def set_rotary(self, config: LlamaConfig) -> None:
        """Take the rotary tables of ``config``, which may differ in ``ROTARY_FIELDS`` alone.

        Call it between steps. Tables of the same length keep their memory, so compiled code and
        CUDA graphs read the new values; another length is compiled anew.
        """
        with torch.device(self.rotary_cos.device):
            tables = rotary_tables(config)
        for name, table in zip(("rotary_cos", "rotary_sin"), tables, strict=True):
            own = self.get_buffer(name)
            if own.shape == table.shape:
                own.copy_(table)
            else:
                setattr(self, name, table)
        self.config = config

    @property
    def head_weight(self) -> nn.Parameter:
        """Weight of the head, [V, H]; the embedding itself when tied."""
        head = self.embed_tokens if self.config.tie_embeddings else self.lm_head
        assert isinstance(head.weight, nn.Parameter)
        return head.weight

    def residual_projections(self) -> Iterator[nn.Linear]:
        """List the linears whose output is added to the residual stream."""
        for layer in self.layers:
            assert isinstance(layer, LlamaBlock)
            yield layer.self_attn.o_proj
            yield layer.mlp.down_proj

    def joined_linears(self) -> Iterator[tuple[nn.Linear, int, int]]:
        """List the linears whose rows are those of heads; of how many matrices, and heads."""
        for module in self.modules():
            if isinstance(module, LlamaAttention):
                yield module.q_proj, 1, module.heads
                yield module.k_proj, 1, module.kv_heads
                yield module.v_proj, 1, module.kv_heads


BLOCK_NORMS: dict[Norm, tuple[str, str, str, str]] = {
    "pre": ("input_layernorm", "", "post_attention_layernorm", ""),
    "post": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "peri": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
"""Norms before and after attention, before and after the MLP, by their names in transformers'
Llama, OLMo 2 and Gemma 2; empty where there is none."""


class LlamaBlock(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norms = BLOCK_NORMS[config.norm]
        self._add_norms(config, self.norms[:1])
        self.self_attn = LlamaAttention(config)
        self._add_norms(config, self.norms[1:3])
        self.mlp = LlamaMLP(config)
        self._add_norms(config, self.norms[3:])

    def _add_norms(self, config: LlamaConfig, names: tuple[str, ...]) -> None:
        for name in filter(None, names):
            self.add_module(name, RMSNorm(config.hidden_size, config.norm_eps))

    def forward(
        self,
        x_BTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        before, after, before_mlp, after_mlp = self.norms
        attended = self.self_attn(self._normed(before, x_BTH), rotary, mask)
        x_BTH = x_BTH + self._normed(after, attended)
        return x_BTH + self._normed(after_mlp, self.mlp(self._normed(before_mlp, x_BTH)))

    def _normed(self, name: str, x_BTH: Tensor) -> Tensor:
        normed: Tensor = getattr(self, name)(x_BTH) if name else operand(x_BTH)
        return normed


class RMSNorm(nn.Module):
    """RMSNorm in fp32; under autocast the result is cast once for all its users."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        return operand(normed.to(x.dtype))


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_size = config.head_size
        hidden, bias = config.hidden_size, config.attention_bias
        q_size, kv_size = self.heads * self.head_size, self.kv_heads * self.head_size
        self.q_proj = nn.Linear(hidden, q_size, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_size, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_size, bias=bias)
        self.o_proj = nn.Linear(q_size, hidden, bias=bias)
        self.qk_norm = config.qk_norm
        if self.qk_norm != "none":
            of_head = self.qk_norm == "head"
            self.q_norm = RMSNorm(self.head_size if of_head else q_size, config.norm_eps)
            self.k_norm = RMSNorm(self.head_size if of_head else kv_size, config.norm_eps)
        self.scale = attention_scale(config)
        self.joint = False
        """Compute query, key and value as one product."""

    def forward(
        self,
        x_BTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        batch, length, _ = x_BTH.shape
        linears = (self.q_proj, self.k_proj, self.v_proj)
        # No other name keeps a projection, so it is freed once it is rotated.
        q_BTND, k_BTKD, v_BTKD = (
            part.view(batch, length, -1, self.head_size)
            for part in products(x_BTH, linears, joint=self.joint)
        )
        if self.qk_norm != "none":
            q_BTND, k_BTKD = self._normed(self.q_norm, q_BTND), self._normed(self.k_norm, k_BTKD)
        q_BTND, k_BTKD = rotate(q_BTND, rotary), rotate(k_BTKD, rotary)
        out_BNTD = attend(
            q_BTND.transpose(1, 2),
            k_BTKD.transpose(1, 2),
            v_BTKD.transpose(1, 2),
            mask,
            scale=self.scale,
        )
        projected: Tensor = self.o_proj(out_BNTD.transpose(1, 2).reshape(batch, length, -1))
        return projected

    def _normed(self, norm: nn.Module, x_BTND: Tensor) -> Tensor:
        normed: Tensor
        if self.qk_norm == "head":
            normed = norm(x_BTND)
        else:
            normed = norm(x_BTND.flatten(-2)).view_as(x_BTND)
        return normed


class LlamaMLP(nn.Module):
    """SwiGLU with its three matrices, or GELU or squared ReLU with two."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.kind = config.mlp
        if self.kind == "swiglu":
            self.gate_proj = nn.Linear(hidden, inner, bias=bias)
            self.joint = False
            """Compute gate and up as one product."""
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "gelu":
            return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))  # type: ignore[no-any-return]
        if self.kind == "relu2":
            return self.down_proj(F.relu(self.up_proj(x)).square())  # type: ignore[no-any-return]
        if self.joint:
            gate, up = products(x, (self.gate_proj, self.up_proj), joint=True)
            return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]
        # Unnamed, so that each is freed as early as can be where nothing is kept for backward.
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


def rotary_tables(config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines [longest, D] in fp32 (RoPE, arXiv:2104.09864; Llama's halves).

    The angles are fp64: at position 8,192 an fp32 angle is wrong by 5e-4. YaRN's factor of the
    attention is in the tables, as in ``transformers``: queries and keys both have it.
    """
    head_size = config.head_size
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    frequencies = 1.0 / config.rope_theta**exponents
    attention = 1.0
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        frequencies /= scaling.factor
    elif scaling is not None:
        # The frequencies, not rounded, that turn so often within the original length. They are
        # rounded and limited as in the paper's code, also where that is beyond the last index.
        fast, slow = (
            head_size
            * math.log(scaling.original_max_sequence_length / turns / (2 * math.pi))
            / (2 * math.log(config.rope_theta))
            for turns in (scaling.beta_fast, scaling.beta_slow)
        )
        first, last = max(math.floor(fast), 0), min(math.ceil(slow), head_size - 1)
        indices = torch.arange(head_size // 2, dtype=torch.float64)
        takes = ((indices - first) / ((last - first) or 0.001)).clamp(0.0, 1.0)
        frequencies *= 1.0 - takes * (1.0 - 1.0 / scaling.factor)
        attention = 0.1 * math.log(scaling.factor) + 1.0
    angles = torch.outer(torch.arange(config.max_sequence_length, dtype=torch.float64), frequencies)
    cos, sin = (angles.cos() * attention).float(), (angles.sin() * attention).float()
    return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)


def rotate(x_BTND: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (i, i + D/2) by its position's angle, in fp32."""
    cos_TD, sin_TD = rotary
    x = x_BTND.float()
    low, high = x.chunk(2, dim=-1)
    rotated = torch.cat([-high, low], dim=-1)
    return (x * cos_TD[:, None] + rotated * sin_TD[:, None]).to(x_BTND.dtype)
