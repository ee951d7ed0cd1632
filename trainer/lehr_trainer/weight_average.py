"""A running mean of the weights (``train.average``), in the host memory of rank 0.

Of a sharded model each rank has the mean of its rows.

On CUDA a snapshot is copied to pinned memory on a stream of its own, beside the next step's
forward and backward; only the update, which changes the weights, waits for it on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.checkpointing.staging import Background, HostCopy, TooLittleMemory
from lehr_trainer.configs.execution import AverageConfig
from lehr_trainer.errors import BadCheckpoint, BadConfig
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.sharding import own_parameters, rows_of_state, shards_of

_EMA = "ema"
_BUFFER = "buffer"
"""Where an ema's snapshot arrives; no part of the state."""


class WeightAverage:
    """All ranks know which snapshots there are; rank 0 alone holds them."""

    def __init__(self, config: AverageConfig, model: nn.Module, ranks: Ranks) -> None:
        """Reserve the host memory. Every rank must call it.

        Raises:
            BadConfig: rank 0's machine has too little free memory.
        """
        self._config, self._ranks = config, ranks
        self._model, self._parameters = model, own_parameters(model)
        self._sharded = shards_of(model) is not None
        self._holds = ranks.is_main or self._sharded
        self._count = 0
        self._steps: list[int] = []
        self._val_loss: dict[int, float] = {}
        """Of the last evaluation, by its step."""
        self._host = HostCopy(ranks.device)
        self._background = Background(ranks.device)
        copies = self._holds and ranks.device.type == "cuda"
        self._stream = torch.cuda.Stream(ranks.device) if copies else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        (ranks.on_each if self._sharded else ranks.on_rank0)(self._reserve)

    def _reserve(self) -> None:
        names = slots(self._config, self._config.held)
        if self._config.ema is not None and self._stream is not None:
            names.append(_BUFFER)
        layout = tuple(
            (slot, name, torch.float32, weight.shape, 4 * weight.numel())
            for slot in names
            for name, weight in self._parameters.items()
        )
        try:
            self._host.reserve(layout)
        except TooLittleMemory as error:
            raise BadConfig(
                f"train.average: {error}; lower average.last, or leave average out"
            ) from None

    # --- for the loop ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it is a mean of two snapshots or more."""
        return self._count > 1

    def before_update(self) -> None:
        """Make the device finish a copy in progress before it changes the weights."""
        if self._copied is not None:
            torch.cuda.current_stream(self._ranks.device).wait_event(self._copied)

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        config = self._config
        if step % config.every:
            return
        self._count += 1
        slot = slots(config, self._count)[-1]
        self._steps = [*self._steps, step][-config.held :]
        if not self._holds:
            return
        if config.ema is None:
            self._copy(slot)
            return
        # The sum of the weights 1, d, d^2, ... of all snapshots, of which the newest has 1.
        decay = config.ema**config.every
        share = (1 - decay) / (1 - decay**self._count)
        if self._stream is None:
            snapshot = ((name, weight.float()) for name, weight in self._parameters.items())
            self._fold(snapshot, share, in_place=False)
            return
        self._background.wait()
        self._copy(_BUFFER)
        copied = self._copied
        assert copied is not None

        def fold() -> None:
            copied.synchronize()
            self._fold(self._host.views[_BUFFER].items(), share, in_place=True)

        self._background.start(fold)

    def _copy(self, slot: str) -> None:
        """Copy the weights to ``slot``; on CUDA, begin to."""
        views = self._host.views[slot]
        if self._stream is None:
            for name, weight in self._parameters.items():
                views[name].copy_(weight)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._ranks.device))
        with torch.cuda.stream(self._stream):
            for name, weight in self._parameters.items():
                views[name].copy_(weight, non_blocking=True)
        self._copied = self._stream.record_event()

    @torch.no_grad()
    def _fold(
        self, snapshot: Iterable[tuple[str, Tensor]], share: float, *, in_place: bool
    ) -> None:
        """Move the ema by ``share`` of its distance to the snapshot.

        Each operation rounds once, unlike ``lerp``, so the number of threads changes nothing.
        """
        for name, weight in snapshot:
            ema = self._host.views[_EMA][name]
            distance = weight.sub_(ema) if in_place else weight - ema
            ema.add_(distance.mul_(share))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the model have the average's weights. Every rank must enter it."""
        if self._holds:
            self._settle()
        with weights_kept(self._parameters.values()):
            for name, weight in self._parameters.items():
                if self._holds:
                    weight.data.copy_(self._mean(name))
                if not self._sharded:
                    self._ranks.broadcast(weight.detach())
            yield

    def _mean(self, name: str) -> Tensor:
        return mean([self._host.views[slot][name] for slot in slots(self._config, self._count)])

    def _settle(self) -> None:
        self._background.wait()
        if self._copied is not None:
            self._copied.synchronize()

    def evaluated(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Note an evaluation of the average, and return its values under their own names."""
        self._val_loss = {step: values["val/loss"]}
        return {f"val/average/{name.removeprefix('val/')}": v for name, v in values.items()}

    # --- for checkpoints ---------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return its state by ``SLOT/NAME``; not copied. Rank 0 has it, of a sharded model each.

        Slots that are empty yet are part of it, so that all checkpoints of a run have one size.
        """
        self._settle()
        return {
            f"{slot}/{name}": tensor
            for slot, named in self._host.views.items()
            if slot != _BUFFER
            for name, tensor in named.items()
        }

    def describe(self, step: int) -> dict[str, Any]:
        """Return its part of the checkpoint's ``state.json`` at ``step``."""
        return {
            "config": self._config.model_dump(),
            "count": self._count,
            "steps": self._steps,
            "val_loss": self._val_loss.get(step),
        }

    def restore(self, directory: Path, document: Mapping[str, Any]) -> str | None:
        """Load what a verified checkpoint holds. Every rank must call it.

        Returns:
            Why it begins anew instead, for people; None if it does not.

        Raises:
            BadCheckpoint: the checkpoint lacks a part of it.
        """
        described = document.get("average")
        if described is None:
            return "the checkpoint holds no average of the weights: it begins here"
        if described["config"] != self._config.model_dump():
            return "the average of the checkpoint has other settings: it begins anew"
        self._count, self._steps = int(described["count"]), list(described["steps"])

        def load() -> None:
            saved = read_tensors(directory, read_manifest(directory), "average")
            own = self.tensors()
            rows = rows_of_state(self._model, own)
            for name, tensor in own.items():
                part = saved.rows(name, rows.get(name)) if name in saved else None
                if part is None or part.shape != tensor.shape:
                    raise BadCheckpoint(f"the average of {directory} lacks a valid {name}")
                tensor.copy_(part)

        (self._ranks.on_each if self._sharded else self._ranks.on_rank0)(load)
        return None


def slots(config: AverageConfig, count: int) -> list[str]:
    """Return the names of what makes up the mean after ``count`` snapshots, oldest first."""
    if config.last is None:
        return [_EMA]
    return [str(number % config.last) for number in range(max(0, count - config.last), count)]


def mean(tensors: list[Tensor]) -> Tensor:
    """Return the mean, summed in float64 in the order given, in the type of the tensors."""
    total = tensors[0].to(torch.float64)
    for tensor in tensors[1:]:
        total += tensor
    return total.div_(len(tensors)).to(tensors[0].dtype)


@contextmanager
def weights_kept(weights: Iterable[Tensor]) -> Iterator[None]:
    """Put the weights back afterwards, bitwise, from a copy on their device."""
    weights = [weight.detach() for weight in weights]
    kept = [weight.clone() for weight in weights]
    try:
        yield
    finally:
        if weights:  # A run without an average has none to keep.
            torch._foreach_copy_(weights, kept)
