"""The shapes of the model families, their presets, and what changes with width under muP.

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

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import ConfigDict, Field, model_validator

from lehr_trainer.configs.base import Config, OrNone, PositiveInt, must_name
from lehr_trainer.errors import UnknownPreset

Parametrization = Literal["standard", "mup"]
DEFAULT_HEAD_SIZE = 64
"""Head size at which muP's attention scores are those of the standard parametrization."""


class Shape(Protocol):
    """What this module reads of a model's config."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def stable_embedding(self) -> bool: ...
    @property
    def parametrization(self) -> Parametrization: ...
    @property
    def base_width(self) -> int | None: ...
    @property
    def base_head_size(self) -> int | None: ...


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
    head_size = model.hidden_size // model.num_attention_heads
    return math.sqrt(model.base_head_size or DEFAULT_HEAD_SIZE) / head_size


def head_std(model: Shape) -> float:
    """Return the standard deviation of a head's first weights: of an untied one, or under muP."""
    # Not 1 / sqrt: it rounds otherwise, and standard models must keep their first weights.
    return float((model.base_width or model.hidden_size) ** -0.5)


ROTARY_FIELDS = frozenset({"rope_theta", "rope_scaling", "max_sequence_length"})
"""Fields of a LlamaConfig on which only its rotary tables depend, and no weight."""


class RopeScalingConfig(Config):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): rotary positions for a longer context.

    Slow frequencies are divided by ``factor``, fast ones stay, those between are interpolated.
    Attention scores are multiplied by the square of 0.1 ln(factor) + 1.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Annotated[float, Field(gt=1)]
    """The longer context over the original one."""
    original_max_sequence_length: PositiveInt
    """The longest sequence that the weights were trained on without this scaling."""
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    """Frequencies with more turns than this within the original length stay."""
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    """Frequencies with fewer turns than this within the original length are divided."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast {self.beta_fast:g} is not above beta_slow {self.beta_slow:g}"
            )
        return self


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
        self._check_scaling()
        check_parametrization(self)
        return self

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
        if self.rope_theta <= 1:
            raise ValueError(f"rope_scaling needs a rope_theta above 1, not {self.rope_theta:g}")


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

# ``model: llama-1b`` is the whole shape; ``{preset: llama-1b, num_hidden_layers: 8}`` changes it.
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
