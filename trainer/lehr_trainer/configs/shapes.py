"""The shapes of the model families: Llama and GPT-2."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from lehr_trainer.configs.base import Config, PositiveInt, must_name
from lehr_trainer.configs.parametrization import Parametrization, check_parametrization


class LlamaConfig(Config):
    """A Llama-3-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    kind: Literal["llama"] = "llama"
    vocab_size: PositiveInt
    """Rows of the embedding: at least the tokenizer's tokens."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    intermediate_size: PositiveInt
    """Width of the SwiGLU. Often 4 x hidden_size."""
    num_hidden_layers: PositiveInt
    """Transformer blocks."""
    num_attention_heads: PositiveInt
    """Query heads; must divide hidden_size."""
    num_key_value_heads: PositiveInt
    """Key and value heads; must divide the query heads (grouped-query attention)."""
    rope_theta: Annotated[float, Field(gt=0)] = 500_000.0
    """Base of the rotary position embedding's frequencies."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added under the root of RMSNorm."""
    tie_embeddings: bool = True
    """The head's matrix is the embedding's."""
    attention_bias: bool = False
    """Biases in the attention's projections."""
    mlp_bias: bool = False
    """Biases in the feed-forward's projections."""
    max_sequence_length: PositiveInt = 8192
    """The longest sequence that positions are made for."""
    stable_embedding: bool = False
    """bitsandbytes' StableEmbedding: a LayerNorm after the look-up, Xavier's first weights."""
    parametrization: Parametrization = "standard"
    """mup: the best learning rate stays where it is when the model gets wider (maximal update
    parametrization, Yang et al. 2022, arXiv:2203.03466). For AdamW and Muon."""
    base_width: PositiveInt | None = None
    """The hidden_size at which the learning rate was found; for mup, which needs it."""
    base_head_size: PositiveInt | None = None
    """Head size at which mup's attention scores are those of standard: they are multiplied by
    sqrt(base_head_size) / head size. 64 if not given; the same for all widths of a family."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} does not divide "
                f"hidden_size {self.hidden_size}"
            )
        head_size = self.hidden_size // self.num_attention_heads
        if head_size % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads is {head_size}; "
                "rotary positions need an even head size"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide "
                f"num_attention_heads {self.num_attention_heads}"
            )
        check_parametrization(self)
        return self


class GPT2Config(Config):
    """GPT-2: learned positions, LayerNorm, GELU (tanh), biases everywhere (Radford et al. 2019)."""

    model_config = ConfigDict(json_schema_extra=must_name("kind"))

    kind: Literal["gpt2"] = "gpt2"
    vocab_size: PositiveInt
    """Rows of the embedding: at least the tokenizer's tokens."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    intermediate_size: PositiveInt | None = None
    """Width of the MLP; 4 x hidden_size if not given, as in the paper."""
    num_hidden_layers: PositiveInt
    """Transformer blocks."""
    num_attention_heads: PositiveInt
    """Heads; must divide hidden_size."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added under the root of LayerNorm."""
    tie_embeddings: bool = True
    """The head's matrix is the embedding's."""
    max_sequence_length: PositiveInt = 1024
    """Rows of the position embedding: a longer sequence cannot be read at all."""
    stable_embedding: bool = False
    """bitsandbytes' StableEmbedding: a LayerNorm after the look-up, Xavier's first weights."""
    parametrization: Parametrization = "standard"
    """mup: the best learning rate stays where it is when the model gets wider (maximal update
    parametrization, Yang et al. 2022, arXiv:2203.03466). For AdamW and Muon."""
    base_width: PositiveInt | None = None
    """The hidden_size at which the learning rate was found; for mup, which needs it."""
    base_head_size: PositiveInt | None = None
    """Head size at which mup's attention scores are those of standard: they are multiplied by
    sqrt(base_head_size) / head size. 64 if not given; the same for all widths of a family."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} does not divide "
                f"hidden_size {self.hidden_size}"
            )
        check_parametrization(self)
        return self

    @property
    def mlp_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size


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
