"""GPT-2: learned positions, LayerNorm before each part, GELU by tanh, biases.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners". The
parameters carry transformers' names; its Conv1D keeps weights as [in, out],
so ``TRANSPOSED`` names what turns on the way over.

Shapes: B sequences, T tokens, D hidden size, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from lehr_trainer.configs.shapes import GPT2Config, attention_scale, output_multiplier
from lehr_trainer.models.attention import attend
from lehr_trainer.models.documents import attention_mask, document_positions
from lehr_trainer.models.shared_layers import begin_stream

TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class GPT2Attention(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.scale = attention_scale(config)
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BTD: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        batch, length, width = x_BTD.shape
        heads_BT3HK = self.c_attn(x_BTD).view(batch, length, 3, self.heads, -1)
        query, key, value = heads_BT3HK.permute(2, 0, 3, 1, 4).unbind(0)
        out_BHTK = attend(query, key, value, mask, scale=self.scale)
        out_BTD: Tensor = self.c_proj(out_BHTK.transpose(1, 2).reshape(batch, length, width))
        return out_BTD


class MLP(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, config.mlp_size)
        self.c_proj = nn.Linear(config.mlp_size, config.hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out_BTD: Tensor = self.c_proj(F.gelu(self.c_fc(x_BTD), approximate="tanh"))
        return out_BTD


class GPT2Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = GPT2Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        x_BTD = x_BTD + self.attn(self.ln_1(x_BTD), mask)
        out_BTD: Tensor = x_BTD + self.mlp(self.ln_2(x_BTD))
        return out_BTD


class GPT2(nn.Module):
    """GPT-2, from tokens to hidden states; the head's matmul belongs to the loss."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.residual_dtype: torch.dtype | None = None
        """Of the residual stream; None: that of the embedding."""
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_sequence_length, config.hidden_size)
        self.h = nn.ModuleList(GPT2Block(config) for _ in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.output_multiplier = output_multiplier(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor, document_ids_BT: Tensor | None = None) -> Tensor:
        """Compute the head's input [B, T, D]; with ids, documents are masked.

        It is the last norm's output, under muP times ``output_multiplier``.
        """
        length = tokens_BT.shape[1]
        if length > self.config.max_sequence_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the "
                f"{self.config.max_sequence_length} positions of this GPT-2"
            )
        mask = attention_mask(tokens_BT, document_ids_BT)
        if document_ids_BT is None:
            places = torch.arange(length, device=tokens_BT.device)
        else:
            places = document_positions(document_ids_BT)
        x_BTD = begin_stream(self.wte(tokens_BT) + self.wpe(places), self.residual_dtype)
        for block in self.h:
            x_BTD = block(x_BTD, mask)
        out_BTD: Tensor = self.ln_f(x_BTD)
        return out_BTD if self.output_multiplier == 1.0 else out_BTD * self.output_multiplier

    @property
    def head_weight(self) -> nn.Parameter:
        """Weight of the head, [V, D]; the embedding itself when tied."""
        head: nn.Embedding | nn.Linear = self.wte if self.config.tie_embeddings else self.lm_head
        assert isinstance(head.weight, nn.Parameter)
        return head.weight

    def joined_linears(self) -> Iterator[tuple[nn.Linear, int, int]]:
        """List the linears whose rows are those of heads; of how many matrices, and heads."""
        for block in self.h:
            assert isinstance(block, GPT2Block)
            yield block.attn.c_attn, 3, 3 * block.attn.heads  # query, key, value

    def residual_projections(self) -> Iterator[nn.Linear]:
        """List the linears whose output is added to the residual stream."""
        for block in self.h:
            assert isinstance(block, GPT2Block)
            yield block.attn.c_proj
            yield block.mlp.c_proj


def to_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert this state dict to ``transformers.GPT2LMHeadModel``'s names and orientation."""
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        transposed = tensor.T.contiguous() if name.endswith(TRANSPOSED) else tensor
        out[name if name == "lm_head.weight" else f"transformer.{name}"] = transposed
    return out


def transformers_config(config: GPT2Config) -> dict[str, object]:
    """Make ``config.json`` for ``transformers``: no dropout, since training uses none."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_sequence_length,
        "n_embd": config.hidden_size,
        "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads,
        "n_inner": config.mlp_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "torch_dtype": "float32",
    }
