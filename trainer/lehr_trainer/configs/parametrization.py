"""What changes with a model's width under muP; nothing does in the standard parametrization.

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
from typing import Literal, Protocol

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
