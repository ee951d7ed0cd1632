"""Means of weights that lie on disk: the running average of a checkpoint, and its description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.execution import AverageConfig
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.export.model_card import Mean
from lehr_trainer.weight_average import mean, slots


@contextmanager
def mean_of(parts: Sequence[Mapping[str, Tensor]], folder: Path) -> Iterator[dict[str, Tensor]]:
    """Yield the mean of mapped tensors, mapped from a file in ``folder`` that exists meanwhile.

    Only one of its tensors is in memory at a time. What is no floating-point number is the first's.
    """
    path, first = folder / "mean.tmp", parts[0]

    def averaged(name: str) -> Tensor:
        tensors = [part[name] for part in parts]
        return mean(tensors) if tensors[0].is_floating_point() else tensors[0]

    checkpoint.write_safetensors(path, first, (averaged(name) for name in first))
    try:
        with checkpoint.open_tensors(path) as file:
            yield {name: file.get_tensor(name) for name in first}
    finally:
        path.unlink()


def running_average(
    directory: Path, manifest: checkpoint.Manifest, state: Mapping[str, Any]
) -> tuple[list[dict[str, Tensor]], Mean]:
    """Return the parts of a checkpoint's running average, mapped, and what they are.

    Raises:
        BadCheckpoint: it holds no average of two snapshots or more, or a damaged one.
    """
    described = state.get("average")
    if described is None or described["count"] < 2:
        held = "no average of weights" if described is None else "one snapshot, which is no average"
        raise BadCheckpoint(
            f"{directory} holds {held}; export without --average, or choose a later step of a run "
            "with train.average"
        )
    checkpoint.verify(directory, {"average"})
    tensors = checkpoint.read_tensors(directory, manifest, "average")
    config, steps = AverageConfig.model_validate(described["config"]), described["steps"]
    parts = [
        {
            name.removeprefix(f"{slot}/"): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{slot}/")
        }
        for slot in slots(config, described["count"])
    ]
    text = f"Its weights are the mean of those after the steps {', '.join(map(str, steps))}"
    if config.ema is not None:
        text = (
            f"Its weights are an exponential moving average until step {steps[-1]:,}, of a "
            f"snapshot every {config.every} steps with a decay of {config.ema} for each step"
        )
    return parts, Mean(f"{text} (`train.average`).", described["val_loss"])
