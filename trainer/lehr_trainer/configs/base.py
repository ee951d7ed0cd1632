"""Base class, types and helpers of every part of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from lehr_trainer.configs.documented import Documented

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Config(Documented):
    """A frozen model with strict names: a misspelt field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    shorthand: ClassVar[str] = ""
    """The field that a plain value in place of this mapping sets; empty if there is none."""
    switch: ClassVar[tuple[str, str] | None] = None
    """What false and true mean there."""

    @model_validator(mode="before")
    @classmethod
    def _accept_shorthand(cls, raw: Any) -> Any:
        return cls.spelled_out(raw)

    @classmethod
    def spelled_out(cls, raw: Any) -> Any:
        """Return the mapping that a plain value means; anything else as it is."""
        if not cls.shorthand or not isinstance(raw, str | bool):
            return raw
        return {cls.shorthand: cls.switch[raw] if cls.switch and isinstance(raw, bool) else raw}


def tagged(tag: str, default: str) -> Callable[[Any], Any]:
    """Make a validator for a union with a discriminator; a missing one means ``default``,
    and a text alone is the tag.
    """

    def with_tag(raw: Any) -> Any:
        if isinstance(raw, str):
            return {tag: raw}
        return {tag: default, **raw} if isinstance(raw, dict) else raw

    return with_tag


def must_name(tag: str) -> Callable[[dict[str, Any]], None]:
    """Make a schema change that requires ``tag``, so that exactly one member of a union matches."""

    def require(schema: dict[str, Any]) -> None:
        schema["required"] = [tag, *schema.get("required", [])]

    return require
