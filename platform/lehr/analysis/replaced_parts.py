"""What a plan, a gate and an export still know of a run whose project replaces parts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr_trainer.configs.train import TrainConfig


@dataclass(frozen=True)
class BuiltModel:
    """A model as it was counted by building it."""

    parameters: int
    looked_up: int
    """Of tables that are only looked up."""

    @property
    def flops_per_token(self) -> float:
        """Estimate them as 6 for each weight that a token is multiplied with."""
        return 6.0 * (self.parameters - self.looked_up)


def replaced_model(train: TrainConfig) -> str | None:
    """Return the class of the project's own model; None if the model is Lehr's."""
    return train.parts.model if train.parts is not None else None


def changes_memory(train: TrainConfig) -> bool:
    """Return whether a replaced part may hold another memory than the plan's."""
    return train.parts is not None


def not_ours(train: TrainConfig) -> str:
    """Return the replaced parts in words, e.g. ``model class gated:Gated is not Lehr's``."""
    assert train.parts is not None
    kinds = {"model": "model class", "loss": "loss", "optimizer": "optimizer"}
    named = [f"{kinds[part]} {name}" for part, name in train.parts.named.items()]
    return f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} not Lehr's"


def still_known(train: TrainConfig, built: BuiltModel | None) -> list[str]:
    """Return what is known of a changed run, and what is not; empty for Lehr's own parts."""
    if train.parts is None:
        return []
    kind, parts = train.model.kind, train.parts
    found = []
    if parts.model is not None:
        counted = (
            "parameters counted by building it"
            if built is not None
            else f"parameters counted as of Lehr's {kind}: it was not built"
        )
        found.append(
            f"model class {parts.model} is not Lehr's: {counted}; FLOPs estimated as 6N; memory "
            f"planned as of Lehr's {kind}; export is not possible"
        )
    if parts.loss is not None:
        found.append(
            f"loss {parts.loss} is not Lehr's: memory planned as of {train.loss.name}; val/loss "
            "remains Lehr's cross entropy"
        )
    if parts.optimizer is not None:
        found.append(
            f"optimizer {parts.optimizer} is not Lehr's: memory planned as of "
            f"{train.optimizer.name}"
        )
    return found
