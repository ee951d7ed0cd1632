"""Base class, types and helpers of every part of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from lehr_trainer.configs.documented import Documented

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Config(Documented):
    """A frozen model with strict names: a misspelt field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def tagged(tag: str, default: str) -> Callable[[Any], Any]:
    """Make a validator for a union with a discriminator; a missing one means ``default``."""

    def with_tag(raw: Any) -> Any:
        return {tag: default, **raw} if isinstance(raw, dict) else raw

    return with_tag


def must_name(tag: str) -> Callable[[dict[str, Any]], None]:
    """Make a schema change that requires ``tag``, so that exactly one member of a union matches."""

    def require(schema: dict[str, Any]) -> None:
        schema["required"] = [tag, *schema.get("required", [])]

    return require
