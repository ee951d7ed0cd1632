"""What a plan, a gate and an export still know of a run whose project replaces parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr_trainer.configs.train import TrainConfig
    from lehr_trainer.planning.memory import MemoryMoment, MemoryPlan

Moments = Mapping[str, Mapping[str, int]]  # Bytes by phase of a step and kind.


@dataclass(frozen=True)
class BuiltParts:
    """A run's replaced parts, as a process of the trainer built and traced them."""

    parameters: int | None = None  # Of the project's model; None if the model is Lehr's.
    looked_up: int = 0  # Of tables that are only looked up.
    traces: tuple[tuple[Moments, Moments], ...] = ()
    """Of each stage and shape of a micro-batch: a step with these parts as it was traced, and what
    the formula has for Lehr's own in its place. Empty if it could not be traced."""
    untraced: str = ""  # Why not.

    @property
    def flops_per_token(self) -> float | None:
        """Estimate them as 6 for each weight that a token is multiplied with; None: as Lehr's."""
        return None if self.parameters is None else 6.0 * (self.parameters - self.looked_up)

    def changed(self, plans: list[MemoryPlan]) -> list[MemoryPlan]:
        """Add to the plan of Lehr's own parts what the trace shows beyond their formula."""
        pairs = zip(plans, self.traces, strict=True) if self.traces else ()
        return [_changed(plan, *trace) for plan, trace in pairs] or plans


def _changed(plan: MemoryPlan, traced: Moments, formula: Moments) -> MemoryPlan:
    def moment(phase: str, own: MemoryMoment) -> MemoryMoment:
        there, planned = traced[phase], formula[phase]
        changes = {
            kind: max(0, size + there[kind] - planned[kind]) for kind, size in asdict(own).items()
        }
        return replace(own, **changes)

    return replace(plan, phases={phase: moment(phase, own) for phase, own in plan.phases.items()})


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


def still_known(train: TrainConfig, built: BuiltParts | None) -> list[str]:
    """Return what is known of a changed run, and what is not; empty for Lehr's own parts."""
    if train.parts is None:
        return []
    kind, parts = train.model.kind, train.parts
    traced = built is not None and bool(built.traces)
    found = []

    def memory(ours: str) -> str:
        return f"memory planned {'by a trace of its step' if traced else f'as of {ours}'}"

    if parts.model is not None:
        own = f"Lehr's {kind}"
        counted = (
            "parameters counted by building it"
            if built is not None and built.parameters is not None
            else f"parameters counted as of Lehr's {kind}: it was not built"
        )
        found.append(
            f"model class {parts.model} is not Lehr's: {counted}; FLOPs estimated as 6N; "
            f"{memory(own)}; export is not possible"
        )
    if parts.loss is not None:
        found.append(
            f"loss {parts.loss} is not Lehr's: {memory(train.loss.name)}; val/loss remains Lehr's "
            "cross entropy"
        )
    if parts.optimizer is not None:
        found.append(f"optimizer {parts.optimizer} is not Lehr's: {memory(train.optimizer.name)}")
    if built is not None and built.untraced:
        found.append(f"a step with these parts could not be traced: {built.untraced}")
    return found
