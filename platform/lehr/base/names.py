"""What names mean: seeds, rates, the better direction of a metric, the type of a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

_SEEDS = ("seed", "random_seed", "manual_seed", "rng_seed", "global_seed", "data_seed")
_RATES = frozenset({
    "lr", "learning_rate", "max_lr", "peak_lr", "base_lr", "init_lr", "initial_lr",
    "max_learning_rate", "peak_learning_rate", "base_learning_rate", "initial_learning_rate",
})  # fmt: skip
_NEUTRAL = frozenset({
    "log_interval", "log_every", "log_every_n_steps", "log_freq", "log_steps", "logging_steps",
    "print_every", "print_interval", "print_freq", "verbose", "log_level", "disable_tqdm",
    "save_interval", "save_every", "save_steps", "save_freq", "save_total_limit",
    "checkpoint_interval", "checkpoint_every", "ckpt_interval", "out_dir", "output_dir",
    "save_dir", "log_dir", "logging_dir", "checkpoint_dir", "run_name", "exp_name",
    "experiment_name", "report_to", "wandb", "wandb_log", "wandb_project", "wandb_run_name",
    "wandb_name", "wandb_entity", "wandb_group", "use_wandb",
})  # fmt: skip
"""Arguments of programs that change what is logged and where, but not what is computed.

Those of evaluations are not among them: nanoGPT, for one, draws its validation batches from the
random numbers of the training.
"""
ARGUMENTS = "trainer.args."
SEED = "train.seed"
PROGRAM_SEED = f"{ARGUMENTS}seed"


def is_seed(path: str) -> bool:
    return _name(path) in _SEEDS


def is_rate(path: str) -> bool:
    return _name(path) in _RATES


def is_neutral_argument(path: str) -> bool:
    """Return whether a parameter is an argument of a program that changes no loss."""
    if f"{path}." == ARGUMENTS:
        return True  # It has no arguments; those of another program count each for itself.
    return path.startswith(ARGUMENTS) and _name(path) in _NEUTRAL


def seed_path(args: Mapping[str, Any]) -> str | None:
    """Return the path of the argument that is a program's seed; None if it has none."""
    names = {_name(name): name for name in args}
    found = next((names[one] for one in _SEEDS if one in names), None)
    return None if found is None else f"{ARGUMENTS}{found}"


def _name(path: str) -> str:
    return path.rpartition(".")[2].lower().replace("-", "_")


Goal = Literal["minimize", "maximize"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*")
_LOWER_IS_BETTER = re.compile(
    r"_([a-z]*loss(es)?|nll|ce|cross_entropy|perplexity|ppl|bits_per_byte|bp[bc]|err(or)?s?|[cw]er|"
    r"r?mse|mae|step_time)_"
)
_HIGHER_IS_BETTER = re.compile(
    r"_([a-z]*accuracy|acc\d*|f1|auc|auroc|bleu|rouge\d*|recall|exact_match|reward|[mh]fu|"
    r"throughput|utilization|per_s(ec(ond)?)?)_"
)
_SPEED = re.compile(r"_(step_time|[mh]fu|throughput|utilization|per_s(ec(ond)?)?)_")


def goal_of(metric: str) -> Goal | None:
    """Return the goal of a metric; None where its name does not show it.

    The last part with a known word decides: ``val/accuracy``, ``Accuracy/test``. A mean of tasks is
    one of accuracies; a standard error has no better direction.
    """
    if metric.endswith("stderr"):
        return None
    if task_of(metric) == "mean":
        return "maximize"
    for part in reversed(metric.split("/")):
        words = _words(part)
        if "_scale_" in words:
            return None  # A loss scale is no loss.
        if _LOWER_IS_BETTER.search(words):
            return "minimize"
        if _HIGHER_IS_BETTER.search(words):
            return "maximize"
    return None


def is_speed(metric: str) -> bool:
    """Return whether a metric has a goal, but measures a machine and no model."""
    return _SPEED.search(_words(metric)) is not None


def _words(name: str) -> str:
    return f"_{'_'.join(_WORD.findall(name)).lower()}_"


def task_of(metric: str) -> str | None:
    """Return the task that a metric is of; ``mean`` for that of all tasks, None if of none."""
    parts = metric.removeprefix("task/average/").removeprefix("task/").split("/")
    return parts[0].removesuffix("_stderr") if metric.startswith("task/") else None


_GPU_WORD = re.compile(r"[a-z0-9]+")


def gpu_words(name: str) -> list[str]:
    return _GPU_WORD.findall(name.lower())


def is_type(gpu_name: str, wanted: str | None) -> bool:
    """Return whether a GPU is of the given type: A100 is a word of "NVIDIA A100-SXM4-80GB".

    Several words are allowed ("A100 80GB"), and spaces do not matter (RTX4090 is "GeForce RTX
    4090"). A part of a word never matches, or H100 would match an H1000.
    """
    if wanted is None:
        return True
    have, want = gpu_words(gpu_name), gpu_words(wanted)
    if set(want) <= set(have):
        return True
    joined = "".join(want)
    return any(
        "".join(have[start:stop]) == joined
        for start in range(len(have))
        for stop in range(start + 1, len(have) + 1)
    )
