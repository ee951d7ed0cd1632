"""What makes a sweep's trials comparable: a metric that all of them log, and equal token counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lehr.errors import SpecProblem, nearest
from lehr.specs.problems import Origin, show

if TYPE_CHECKING:
    from lehr.specs.run import RunSpec
    from lehr.specs.sweep import SweepSpec
    from lehr_trainer.configs.train import TrainConfig

METRICS = (
    "val/loss",
    "val/bits_per_byte",
    "train/loss",
    "train/lr",
    "train/grad_norm",
    "train/skipped_steps",
    "train/loss_scale",
    "train/compression_overflows",
    "tokens_per_s",
    "step_time_s",
    "data_wait_s",
    "mfu",
    "memory/allocated_bytes",
    "memory/peak_bytes",
    "memory/reserved_bytes",
    "memory/rss_bytes",
    "raw_ce_fp32",
    "loss_same_tokens",
    "top1_acc",
)
"""Metrics with fixed names; ``params/`` has one for each part of the model, and ``val/loss/`` one
for each source of a corpus or part of a mix.
"""
_PARTS = re.compile(r"params/[A-Za-z0-9_.]+/(norm|grad_norm|update_ratio)|val/loss/.+")


def metric_problems(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    """Reject a metric that no run logs. Without this check the sweep would rank nothing at its
    end.
    """
    name = sweep.metric.name
    if sweep.run.trainer is not None:
        return  # A program logs what it likes.
    if name in METRICS or _PARTS.fullmatch(name):
        return
    near = nearest(name.replace("_", "/", 1), METRICS) or nearest(name, METRICS)
    hint = f"Did you mean {near}?   " if near else ""
    yield origin.problem(
        "metric.name",
        f"metric.name is {show(name)}, which no run logs.",
        f"{hint}Common metrics: val/loss, train/loss, tokens_per_s. For a part of the "
        "model: params/<part>/norm.",
    )


def budget_problems(
    sweep: SweepSpec, trials: Iterable[tuple[dict[str, Any], RunSpec]], origin: Origin
) -> Iterator[SpecProblem]:
    """Reject trials that train on different numbers of tokens: that alone changes the loss."""
    if sweep.budget == "any" or sweep.run.trainer is not None:
        return
    first: tuple[dict[str, Any], TrainConfig] | None = None
    for parameters, run in trials:
        if first is None:
            first = (parameters, run.own)
        elif not _equal_budget(first[1], run.own):
            yield origin.problem(
                "parameters" if sweep.parameters else "points",
                f"the trials train on different numbers of tokens: {_point(first[0])} on "
                f"{first[1].total_tokens:,}, {_point(parameters)} on {run.own.total_tokens:,}.",
                "Change train.steps with the batch (method: list), or allow it with budget: any",
            )
            return


def _equal_budget(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether both train on as many tokens; a token budget is met to within a step."""
    slack = 0
    if one.has_budget and other.has_budget:
        slack = max(one.tokens_per_step, other.tokens_per_step) - 1
    return abs(one.total_tokens - other.total_tokens) <= slack


def _point(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{path}={show(value)}" for path, value in parameters.items())
