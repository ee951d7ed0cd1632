"""Parts of the trainer that a project replaces: where its own are. Pure, no torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from lehr_trainer.configs.base import Config

PARTS_VERSION = 1
"""Version of the entry points: what a part is called with and returns. It grows when one changes
so that a part written before might not work."""
_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"

Part = Annotated[str, Field(max_length=500, pattern=_NAME)]
"""``module:name``, imported from the project's files of the capsule."""


class PartsConfig(Config):
    """Parts of Lehr's trainer that the project around the spec replaces (docs/your-code.md). Each
    is given as `module:name`, and its file must be in `code.include`.
    """

    version: int = PARTS_VERSION
    """Version of the entry points for which the parts were written."""
    model: Part | None = None
    """A subclass of the Llama or GPT2 of lehr_trainer.models, made as `Class(config.model)`."""
    loss: Part | None = None
    """A function (hidden, head weight, targets, weights or None) -> (sum, count) in nats, or of the
    first three -> mean. Validation keeps Lehr's."""
    optimizer: Part | None = None
    """A function (model, config.optimizer) -> torch.optim.Optimizer."""

    @field_validator("version")
    @classmethod
    def _known(cls, version: int) -> int:
        if version != PARTS_VERSION:
            raise ValueError(
                f"parts are written for version {version} of the entry points, and this Lehr has "
                f"version {PARTS_VERSION}; compare them with `lehr spec trainer DIR`"
            )
        return version

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.named:
            raise ValueError("name at least one of model, loss and optimizer")
        return self

    @property
    def named(self) -> dict[str, str]:
        """Return the replaced parts: ``module:name`` by what it replaces."""
        found = (("model", self.model), ("loss", self.loss), ("optimizer", self.optimizer))
        return {part: name for part, name in found if name is not None}
