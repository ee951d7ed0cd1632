"""The shapes of the model families, and what changes with width under muP.

The maximal update parametrization (muP; Yang et al. 2022, arXiv:2203.03466) keeps the size of
activations and of their updates independent of width. The best learning rate then stays where it
was when only the width grows. This is the form of the paper's table 8, which allows tied weights:

- blocks' matrices: first weights as in standard, 1/sqrt(fan_in); AdamW's rate times base / width;
- embeddings, norms, biases: as in standard, with the rate unchanged;
- head: first weights of the base width; its rate unchanged; its input times base / width. A tied
  head is the embedding, which then has these first weights instead of its own: with the factor,
  an embedding's small ones make the model learn slowly, and the more so the narrower the base is;
- attention scores: divided by the head size, not by its root.

Proportions, such as ``intermediate_size / hidden_size``, are taken to be those at the base width.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from lehr_trainer.configs.base import Config, OrNone, PositiveInt, must_name

Parametrization = Literal["standard", "mup"]
Norm = Literal["pre", "post", "peri"]
DEFAULT_HEAD_SIZE = 64
"""Head size at which muP's attention scores are those of the standard parametrization."""


def check_parametrization(model: Shape) -> None:
    """Check that the fields of muP are given with it, and only then.

    Raises:
        ValueError: they do not fit together.
    """
    if model.parametrization == "standard":
        given = [name for name in ("base_width", "base_head_size") if getattr(model, name)]
        if given:
            raise ValueError(
                f"{given[0]} has no effect with parametrization standard; leave it out, or set "
                "parametrization: mup"
            )
        return
    if model.base_width is None:
        raise ValueError(
            "parametrization mup needs base_width: the hidden_size at which the learning rate was "
            "found"
        )
    if model.stable_embedding:
        raise ValueError(
            "parametrization mup does not go with stable_embedding, whose first weights depend on "
            "the width; leave one of the two out"
        )


def width_ratio(model: Shape) -> float:
    """Return width / base width; 1 in the standard parametrization."""
    return 1.0 if model.base_width is None else model.hidden_size / model.base_width


def output_multiplier(model: Shape) -> float:
    """Return the factor of the head's input."""
    return 1.0 / width_ratio(model)


def attention_scale(model: Shape) -> float | None:
    """Return the factor of the attention scores; None is the standard 1/sqrt(head size)."""
    if model.parametrization == "standard":
        return None
    return math.sqrt(model.base_head_size or DEFAULT_HEAD_SIZE) / model.head_size


def head_std(model: Shape) -> float:
    """Return the standard deviation of a head's first weights: of an untied one, or under muP."""
    # Not 1 / sqrt: it rounds otherwise, and standard models must keep their first weights.
    return float((model.base_width or model.hidden_size) ** -0.5)


ROTARY_FIELDS = frozenset({"rope_theta", "rope_scaling", "max_sequence_length"})
"""Fields of a LlamaConfig on which only its rotary tables depend, and no weight."""


class RopeScalingConfig(Config):
    """Rotary positions for a longer context than the weights were trained on."""

    kind: Literal["yarn", "linear"] = "yarn"
    """linear: all frequencies are divided by ``factor`` (Chen et al. 2023, arXiv:2306.15595).
    yarn: slow frequencies are, fast ones stay, those between are interpolated; attention scores are
    multiplied by the square of 0.1 ln(factor) + 1 (Peng et al. 2023, arXiv:2309.00071)."""
    factor: Annotated[float, Field(gt=1)]
    """The longer context over the original one."""
    original_max_sequence_length: PositiveInt
    """The longest sequence that the weights were trained on without this scaling."""
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    """yarn: frequencies with more turns than this within the original length stay."""
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    """yarn: frequencies with fewer turns than this within the original length are divided."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast {self.beta_fast:g} is not above beta_slow {self.beta_slow:g}"
            )
        if self.kind == "linear" and (self.beta_fast, self.beta_slow) != (32.0, 1.0):
            raise ValueError("beta_fast and beta_slow have no effect with kind linear; use yarn")
        return self


class WindowConfig(Config):
    """Layers that see the nearest tokens only."""

    size: PositiveInt
    """Tokens that such a layer sees: a token itself and those right before it."""
    pattern: Annotated[str, Field(pattern="^[SL]*S[SL]*$")] = "SSSL"
    """S: a layer with the window. L: one that sees the whole sequence. Repeated over the layers."""


class LlamaConfig(Config):
    """A decoder with RMSNorm, rotary positions and grouped-query attention.

    With its defaults it is a Llama 3; other fields make its blocks those of Qwen3, OLMo 2 and more.
    """

    kind: Literal["llama"] = "llama"
    vocab_size: PositiveInt
    """Rows of the embedding: at least the tokenizer's tokens."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    intermediate_size: PositiveInt
    """Width of the MLP. Often 4 x hidden_size."""
    num_hidden_layers: PositiveInt
    """Transformer blocks."""
    num_attention_heads: PositiveInt
    """Query heads; must divide hidden_size, unless head_dim is given."""
    num_key_value_heads: PositiveInt
    """Key and value heads; must divide the query heads (grouped-query attention)."""
    head_dim: OrNone[PositiveInt] = None
    """Size of a head; hidden_size / num_attention_heads if not given."""
    norm: Annotated[Norm, Field(exclude_if=lambda norm: norm == "pre")] = "pre"
    """RMSNorms of a block. pre: of the input of attention and of the MLP. post: of their output,
    before it is added to the stream (OLMo 2, arXiv:2501.00656). peri: of both
    (arXiv:2502.02732)."""
    qk_norm: Annotated[
        Literal["none", "head", "whole"], Field(exclude_if=lambda norm: norm == "none")
    ] = "none"
    """RMSNorm of queries and keys. head: of each head by itself (Qwen3). whole: of all heads
    together (OLMo 2). It broadens the range of good learning rates (arXiv:2309.14322)."""
    mlp: Annotated[
        Literal["swiglu", "gelu", "relu2"], Field(exclude_if=lambda mlp: mlp == "swiglu")
    ] = "swiglu"
    """swiglu has three matrices. gelu (by tanh) and relu2, the square of ReLU (arXiv:2109.08668),
    have two."""
    window: OrNone[WindowConfig] = None
    """Let some layers see the nearest tokens only."""
    logit_softcap: OrNone[Annotated[float, Field(gt=0)]] = None
    """Logits become logit_softcap x tanh(logit / logit_softcap), so none is larger (Gemma 2,
    arXiv:2408.00118). For loss.name chunked and standard."""
    rope_theta: Annotated[float, Field(gt=0)] = 500_000.0
    """Base of the rotary position embedding's frequencies."""
    rope_scaling: OrNone[RopeScalingConfig] = None
    """Change the frequencies for a longer context than the weights were trained on."""
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
        if self.head_dim is None:
            _check_heads(self.num_attention_heads, self.hidden_size)
        if self.head_size % 2:
            named = "hidden_size / num_attention_heads" if self.head_dim is None else "head_dim"
            raise ValueError(
                f"{named} is {self.head_size}; rotary positions need an even head size"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide "
                f"num_attention_heads {self.num_attention_heads}"
            )
        self._check_scaling()
        self._check_window()
        check_parametrization(self)
        return self

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def mlp_size(self) -> int:
        return self.intermediate_size

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer; None for one that sees the whole sequence."""
        if self.window is None:
            return [None] * self.num_hidden_layers
        letters = itertools.islice(itertools.cycle(self.window.pattern), self.num_hidden_layers)
        return [self.window.size if letter == "S" else None for letter in letters]

    def _check_window(self) -> None:
        if self.window is None:
            return
        if self.window.size >= self.max_sequence_length:
            raise ValueError(
                f"window.size {self.window.size} is not below max_sequence_length "
                f"{self.max_sequence_length}, so no layer sees less; lower it, or leave window out"
            )
        if not any(self.windows):
            raise ValueError(
                f"window.pattern {self.window.pattern} has no S among its first "
                f"{self.num_hidden_layers} letters, one a layer, so no layer has the window"
            )

    def _check_scaling(self) -> None:
        scaling, longest = self.rope_scaling, self.max_sequence_length
        if scaling is None:
            return
        original = scaling.original_max_sequence_length
        if original >= longest:
            raise ValueError(
                f"rope_scaling.original_max_sequence_length {original} is not below "
                f"max_sequence_length {longest}, so nothing is to be extended; raise "
                "max_sequence_length, or leave rope_scaling out"
            )
        if original * scaling.factor < longest:
            raise ValueError(
                f"rope_scaling.factor {scaling.factor:g} x original_max_sequence_length {original} "
                f"is below max_sequence_length {longest}; the factor must be at least "
                f"{longest / original:g}"
            )
        if scaling.kind == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"YaRN needs a rope_theta above 1, not {self.rope_theta:g}")


class GPT2Config(Config):
    """GPT-2: learned positions, LayerNorm, GELU (tanh), biases everywhere (Radford et al. 2019)."""

    model_config = ConfigDict(json_schema_extra=must_name("kind"))
    mlp: ClassVar[Literal["gelu"]] = "gelu"
    norm: ClassVar[Norm] = "pre"
    qk_norm: ClassVar[Literal["none"]] = "none"
    logit_softcap: ClassVar[None] = None

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
        _check_heads(self.num_attention_heads, self.hidden_size)
        check_parametrization(self)
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        return self.num_attention_heads

    @property
    def windows(self) -> list[None]:
        return [None] * self.num_hidden_layers

    @property
    def mlp_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size


Shape = LlamaConfig | GPT2Config


def _check_heads(heads: int, hidden_size: int) -> None:
    if hidden_size % heads:
        raise ValueError(f"num_attention_heads {heads} does not divide hidden_size {hidden_size}")
