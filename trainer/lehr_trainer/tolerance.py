"""``lehr_trainer tolerance RUN RUN``: by how much two runs of one config differ.

Two runs that should be the same show what a machine's arithmetic leaves open. With
``deterministic: true`` they are bitwise equal. Without it, their difference is the tolerance for
any comparison with a third run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.runtime import launch

SERIES = ("train/loss", "train/grad_norm", "val/loss")


@dataclass(frozen=True)
class MetricDifference:
    """Largest difference of a metric over the steps that both runs have."""

    name: str
    steps: int
    largest: float
    relative: float
    """The same, divided by the larger of the two values."""
    at_step: int | None
    """None if all values are equal."""


@dataclass(frozen=True)
class Weights:
    """Difference of the newest checkpoints of the same step."""

    step: int
    tensors: int
    different: int
    """How many are not bitwise equal."""
    relative: float
    """Norm of the difference of the model's weights, divided by their norm."""


@dataclass(frozen=True)
class Tolerance:
    series: tuple[MetricDifference, ...]
    weights: Weights | None
    """None if the runs have no checkpoint of the same step."""

    @property
    def bitwise(self) -> bool:
        """Whether nothing differs, as far as it was recorded."""
        same = all(one.largest == 0 for one in self.series)
        return same and (self.weights is None or self.weights.different == 0)

    def lines(self) -> list[str]:
        found = [f"{'':<16} {'steps':>6} {'largest difference':>20} {'relative':>10}  at step"]
        for one in self.series:
            at = "" if one.at_step is None else str(one.at_step)
            figures = f"{one.steps:>6} {one.largest:>20.3g} {one.relative:>10.2g}"
            found.append(f"{one.name:<16} {figures}  {at}".rstrip())
        if self.weights is not None:
            of = f"{self.weights.different} of {self.weights.tensors} tensors differ"
            found.append(
                f"checkpoints of step {self.weights.step}: {of}; weights by "
                f"{self.weights.relative:.2g} of their norm"
            )
        found.append("bitwise equal" if self.bitwise else "not bitwise equal")
        return found


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer tolerance",
        description="By how much two runs of one config differ: losses, gradient norms, weights.",
    )
    parser.add_argument("run_dir", type=Path, nargs=2, help="two folders with the same config.yaml")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        found = tolerance(*given.run_dir)
    except TrainerError as error:
        print(f"tolerance: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({**asdict(found), "bitwise": found.bitwise}))
    else:
        print("\n".join(found.lines()))
    return 0


def tolerance(one: Path, other: Path) -> Tolerance:
    """Compare two runs.

    Raises:
        BadConfig: they have different configs or held-out sets, or no step in common.
    """
    _require_same_config(one, other)
    curves = [_series(run) for run in (one, other)]
    found = tuple(
        _difference(name, *(curve[name] for curve in curves))
        for name in SERIES
        if curves[0][name].keys() & curves[1][name].keys()
    )
    if not found:
        raise BadConfig(f"{one} and {other} have no step in common: train both first")
    if _held_out(one) != _held_out(other):
        raise BadConfig(
            f"{one} and {other} were evaluated on different held-out sets. Train both with one "
            "version of Lehr, on the same corpus"
        )
    return Tolerance(found, _weights(one, other))


def _require_same_config(one: Path, other: Path) -> None:
    first, second = (
        launch.read_config(run / layout.CONFIG).model_dump(mode="json") for run in (one, other)
    )
    for name, value in first.items():
        if second[name] != value:
            raise BadConfig(
                f"{one} and {other} have different configs: {name} is {value} and {second[name]}. "
                "The tolerance is that of two runs of one config"
            )


def _series(run: Path) -> dict[str, dict[int, float]]:
    """Read the points by step; those of a later attempt replace those of an earlier one."""
    found: dict[str, dict[int, float]] = {name: {} for name in SERIES}
    for record in _records(run, "metrics", "evaluation"):
        for name in found.keys() & record["values"].keys():
            # Non-finite numbers are strings, which float reads.
            found[name][record["step"]] = float(record["values"][name])
    return found


def _held_out(run: Path) -> set[str]:
    """Return the digests of the sets on which it was evaluated."""
    return {record["validation_digest"] for record in _records(run, "evaluation")}


def _records(run: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    for attempt in layout.attempts(run):
        path = attempt / layout.EVENTS
        content = path.read_bytes() if path.exists() else b""
        # A last line without its end is still being written.
        for line in content.split(b"\n")[:-1]:
            record: dict[str, Any] = json.loads(line)
            if record["kind"] in kinds:
                yield record


def _difference(name: str, one: dict[int, float], other: dict[int, float]) -> MetricDifference:
    steps = sorted(one.keys() & other.keys())
    gaps = {step: _gap(one[step], other[step]) for step in steps}
    worst = max(steps, key=lambda step: gaps[step])
    scale = max(abs(one[worst]), abs(other[worst]))
    relative = gaps[worst] / scale if scale and math.isfinite(scale) else gaps[worst]
    return MetricDifference(name, len(steps), gaps[worst], relative, worst if gaps[worst] else None)


def _gap(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    gap = abs(one - other)
    return gap if math.isfinite(gap) else math.inf


def _weights(one: Path, other: Path) -> Weights | None:
    saved = [
        {
            layout.checkpoint_step(path): path
            for a in layout.attempts(run)
            for path in layout.checkpoints(a)
        }
        for run in (one, other)
    ]
    steps = saved[0].keys() & saved[1].keys() - {None}
    if not steps:
        return None
    # Import torch only when there is something to compare.
    import torch

    from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors

    step = max(step for step in steps if step is not None)
    tensors = different = 0
    squares = [0.0, 0.0]
    for kind in ("model", "optimizer"):
        first, second = (
            read_tensors(folder, read_manifest(folder), kind)
            for folder in (saved[0][step], saved[1][step])
        )
        for name, tensor in first.items():
            tensors += 1
            if tensor.numpy().tobytes() != second[name].numpy().tobytes():
                different += 1
            if kind == "model":
                squares[0] += float((tensor.double() - second[name].double()).square().sum())
                squares[1] += float(torch.linalg.vector_norm(tensor.double())) ** 2
    return Weights(step, tensors, different, math.sqrt(squares[0] / squares[1]))
