"""Find changes of a spec that make it fit in a GPU, the cheapest in time first. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lehr.specs.run import RunSpec
from lehr_trainer.configs.stages import as_built
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.hardware import GPUS, GpuType, names
from lehr_trainer.planning.memory import training_memory

USABLE_MEMORY = 0.94
"""Share of a GPU's memory that training can use; the CUDA context and fragmentation take the
rest.
"""
_RECOMPUTE = (("none", 1), ("swiglu", 1), ("block", 2), ("block", 1))
"""Policies of activation checkpointing to try, with every how many layers."""
_SHARD = {"none": 1.0, "optimizer": 1.02, "all": 1.05}
"""What of a model the ranks may divide, and an estimate of a step's time: nothing here has measured
it. Within a node the gathering of weights is hidden, but not all of it.
"""
_SAME = "same batch, same result"
_ROUNDED = "the optimizer's moments are rounded to 8 bits"


@dataclass(frozen=True)
class Way:
    """A set of changes after which a run fits."""

    changes: dict[str, Any]  # New values by path in the spec.
    micro_batch: int  # The smallest one after them.
    memory_bytes: int  # Planned peak of one GPU after them.
    time_factor: float
    """Time of a step after them, over its time before; smaller products of a smaller micro-batch
    are not counted."""
    result: str  # What they do to the training's result.

    @property
    def text(self) -> str:
        paths = " ".join(f"{path}={value}" for path, value in self.changes.items())
        percent = 100 * (self.time_factor - 1)
        time = f"about {percent:.0f} % more time" if percent >= 0.5 else "no recomputation"
        return f"{paths}   {self.memory_bytes / 1e9:.1f} GB, {time}, {self.result}"


def usable_bytes(gpu: GpuType) -> float:
    """Return the bytes of a GPU that a plan may use."""
    return USABLE_MEMORY * gpu.memory_bytes


def largest_micro_batch(train: TrainConfig, ranks: int, gpu: GpuType) -> int | None:
    """Return the largest micro-batch that divides a rank's share and fits; None if none does."""
    whole = train.batch.model_copy(update={"micro_batch": None})
    found = _largest_micro_batch(train.model_copy(update={"batch": whole}), ranks, gpu)
    return None if found is None else found[0]


def ways_to_fit(spec: RunSpec, gpu: GpuType, *, most: int = 3) -> list[Way]:
    """Return up to ``most`` sets of changes that make a run fit, cheapest in time first.

    Tried: a smaller micro-batch, activation checkpointing, the chunked loss, 8-bit moments,
    sharding over several ranks, and all their combinations. A set is left out if a part of it fits
    with as large a micro-batch. Times of recomputation are those of
    ``ActivationCheckpointingConfig``. A run that fits as it is needs none.
    """
    if training_memory(spec.own, spec.resources.ranks).peak <= usable_bytes(gpu):
        return []
    costs = [(_cost(way), way) for way in _fitting(spec, gpu)]
    kept = [
        way
        for cost, way in sorted(costs, key=lambda pair: pair[0])
        if not any(
            other != cost and all(a <= b for a, b in zip(other, cost, strict=True))
            for other, _ in costs
        )
    ]
    return kept[:most]


def gpus_that_fit(spec: RunSpec) -> list[str]:
    """Return the GPUs in which it fits as it is or after a change, smallest first."""
    peak = training_memory(spec.own, spec.resources.ranks).peak
    return names(g for g in GPUS if peak <= usable_bytes(g) or ways_to_fit(spec, g, most=1))


def _cost(way: Way) -> tuple[float, int, bool, int]:
    """Return what a way costs, each the lower the better: time, micro-batch, result, changes."""
    return way.time_factor, -way.micro_batch, way.result != _SAME, len(way.changes)


def _fitting(spec: RunSpec, gpu: GpuType) -> Iterator[Way]:
    """Yield each combination of changes that fits, with its largest micro-batch."""
    train, ranks = spec.own, spec.resources.ranks
    before = train.activation_checkpointing
    divides = ranks > 1 and train.parallel.shard == "none"
    for (policy, every), chunked, eight_bit, shard in itertools.product(
        _RECOMPUTE, (False, True), (False, True), _SHARD if divides else ("none",)
    ):
        again = before.model_copy(update={"policy": policy, "every": every})
        changes: dict[str, Any] = {}
        update: dict[str, Any] = {}
        if again.time_factor > before.time_factor:
            update["activation_checkpointing"] = again
            changes["train.activation_checkpointing.policy"] = policy
            if every != before.every:
                changes["train.activation_checkpointing.every"] = every
        elif (policy, every) != _RECOMPUTE[0]:
            continue  # Less recomputation than now.
        if chunked:
            if train.loss.name != "standard":
                continue
            update["loss"] = train.loss.model_copy(update={"name": "chunked"})
            changes["train.loss.name"] = "chunked"
        if shard != "none":
            update["parallel"] = train.parallel.model_copy(update={"shard": shard})
            changes["train.parallel.shard"] = shard
        if eight_bit:
            smaller = train.optimizer.in_eight_bits()
            if smaller is None:
                continue
            update["optimizer"] = smaller
            changes["train.optimizer.name"] = smaller.name
        changed = train.model_copy(update=update)
        try:
            changed.parallel.check_fits(changed)
            stages = as_built(changed)
        except ValueError:
            continue  # It cannot be divided so, or a stage names what would be changed.
        sizes: dict[str, int] = {}
        fitting: list[tuple[int, int]] = []
        for number, (_, own) in enumerate(stages):
            found = _largest_micro_batch(own, ranks, gpu)
            if found is None:
                break
            fitting.append(found)
            # The stages after one that is changed would inherit its micro-batch.
            if sizes or found[0] != (own.batch.micro_batch or own.batch.sequences // ranks):
                place = f"stages.{number}." if train.stages else ""
                sizes[f"train.{place}batch.micro_batch"] = found[0]
        if len(fitting) == len(stages) and (changes := changes | sizes):
            factor = changed.activation_checkpointing.time_factor / before.time_factor
            factor *= _SHARD[shard]
            least, peaks = zip(*fitting, strict=True)
            result = _ROUNDED if eight_bit else _SAME
            yield Way(changes, min(least), max(peaks), factor, result)


def _largest_micro_batch(train: TrainConfig, ranks: int, gpu: GpuType) -> tuple[int, int] | None:
    """Return it with the planned peak; a larger one than the spec's is not tried."""
    share = train.batch.sequences // ranks
    for micro_batch in range(min(train.batch.micro_batch or share, share), 0, -1):
        if share % micro_batch:
            continue
        batch = train.batch.model_copy(update={"micro_batch": micro_batch})
        peak = training_memory(train.model_copy(update={"batch": batch}), ranks).peak
        if peak <= usable_bytes(gpu):
            return micro_batch, peak
    return None
