"""A Llama-3-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Parameters are named as in ``transformers``' LlamaModel, so a checkpoint maps on to it by the
prefix ``model.``. The model ends at its last norm: the head's product belongs to the loss
(losses/chunked.py), which alone decides in what precision and in how many pieces it is made.

Shapes: B sequences, T positions, H hidden, N heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lehr_trainer.configs.shapes import attention_scale, output_multiplier
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.attention import attend
from lehr_trainer.models.documents import document_mask
from lehr_trainer.models.shared_layers import begin_stream, products

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.residual_dtype: torch.dtype | None = None
        """Of the residual stream; None: that of the embedding."""
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
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
        mask = None if document_ids_BT is None else document_mask(document_ids_BT)
        x_BTH = begin_stream(self.embed_tokens(tokens_BT), self.residual_dtype)
        for layer in self.layers:
            x_BTH = layer(x_BTH, rotary, mask)
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


class LlamaBlock(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = LlamaAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self,
        x_BTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        x_BTH = x_BTH + self.self_attn(self.input_layernorm(x_BTH), rotary, mask)
        out_BTH: Tensor = x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))
        return out_BTH


class RMSNorm(nn.Module):
    """RMSNorm in fp32; under autocast the result is cast once for all its users."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            return normed.to(torch.get_autocast_dtype(kind))
        return normed.to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        hidden, kv_size, bias = (
            config.hidden_size,
            self.kv_heads * self.head_size,
            config.attention_bias,
        )
        self.q_proj = nn.Linear(hidden, hidden, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_size, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_size, bias=bias)
        self.o_proj = nn.Linear(hidden, hidden, bias=bias)
        self.scale = attention_scale(config)
        self.joint = False
        """Compute query, key and value as one product."""

    def forward(
        self,
        x_BTH: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        batch, length, hidden = x_BTH.shape
        linears = (self.q_proj, self.k_proj, self.v_proj)
        # No other name keeps a projection, so it is freed once it is rotated.
        q_BTND, k_BTKD, v_BTKD = (
            part.view(batch, length, -1, self.head_size)
            for part in products(x_BTH, linears, joint=self.joint)
        )
        q_BTND, k_BTKD = rotate(q_BTND, rotary), rotate(k_BTKD, rotary)
        out_BNTD = attend(
            q_BTND.transpose(1, 2),
            k_BTKD.transpose(1, 2),
            v_BTKD.transpose(1, 2),
            mask,
            scale=self.scale,
        )
        projected: Tensor = self.o_proj(out_BNTD.transpose(1, 2).reshape(batch, length, hidden))
        return projected


class SwiGLU(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.joint = False
        """Compute gate and up as one product."""

    def forward(self, x: Tensor) -> Tensor:
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
    head_size = config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    frequencies = 1.0 / config.rope_theta**exponents
    attention = 1.0
    if (scaling := config.rope_scaling) is not None:
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
