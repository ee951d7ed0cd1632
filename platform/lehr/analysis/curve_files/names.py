"""Map the names that tools usually log to those that the diagnosis reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from lehr.errors import UserError, nearest

SHORT = {
    "loss": "train/loss",
    "val_loss": "val/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "step_time": "step_time_s",
    "tokens_per_s": "tokens_per_s",
    "data_wait": "data_wait_s",
    "memory": "memory/allocated_bytes",
    "rss": "memory/rss_bytes",
    "epoch": "data/epoch",
    "digest": "data/digest",
    "raw_ce_fp32": "raw_ce_fp32",
    "loss_same_tokens": "loss_same_tokens",
}
"""Short names that ``--metric`` takes, besides the full ones."""
USUAL: dict[str, tuple[str, ...]] = {
    # Of several that a file has, the first is used.
    "train/loss": (
        "train/loss", "loss", "train_loss", "training_loss", "loss/train", "train/ce_loss",
        "lm_loss", "lm loss", "training/loss", "train/cross_entropy_loss", "losses/train",
        "train/cross_entropy", "metrics/ce_loss", "loss_metrics/global_avg_loss", "train_loss_step",
    ),
    "val/loss": (
        "val/loss", "val_loss", "eval/loss", "eval_loss", "validation_loss", "valid/loss",
        "valid_loss", "loss/val", "validation/loss", "loss/eval", "test_loss", "loss/valid",
        "lm loss validation", "test/loss",
    ),
    "train/grad_norm": (
        "train/grad_norm", "grad_norm", "gradient_norm", "grad-norm", "optim/total_grad_norm",
        "train/gradient_norm", "grad_norm/total", "gnorm", "total_norm",
    ),
    "train/lr": (
        "train/lr", "lr", "learning_rate", "train/learning_rate", "learning-rate", "optim/lr",
        "lr-adamw", "learning rate", "optim/learning_rate_group0",
    ),
    "step_time_s": (
        "step_time_s", "seconds_per_step", "iteration-time",  # Megatron's, in seconds.
    ),
    "tokens_per_s": (
        "tokens_per_s", "tokens_per_second", "tps", "tokens/s", "train/tokens_per_s",
        "throughput/device/tps", "throughput(tps)", "train/tokens_per_second",
    ),
    "data_wait_s": ("data_wait_s", "time_metrics/data_loading(s)"),
    "memory/allocated_bytes": ("memory/allocated_bytes",),
    "memory/rss_bytes": ("memory/rss_bytes", "rss_bytes"),
    "data/epoch": ("data/epoch", "epoch", "train/epoch"),
    "data/digest": ("data/digest",),
    "raw_ce_fp32": ("raw_ce_fp32",),
    "loss_same_tokens": ("loss_same_tokens",),
}  # fmt: skip
UNITLESS = {
    "mfu": "mfu", "train/mfu": "mfu", "throughput": "tokens_per_s",
    "step_time": "step_time_s", "train/step_time": "step_time_s", "time_per_step": "step_time_s",
    "iteration_time": "step_time_s", "data_time": "data_wait_s", "data_loading_time": "data_wait_s",
    "memory_allocated": "memory/allocated_bytes", "memory/allocated": "memory/allocated_bytes",
    "rss": "memory/rss_bytes",
}  # fmt: skip
"""Names that show no unit, each with the metric that it is if its unit is declared: nanoGPT's mfu
is in percent, that of Lehr a share.
"""
_PART = re.compile(r"params/[^/]+/(grad_norm|update_ratio)")
_WANDB = re.compile(r".* - (?P<name>[^-]+)")


def overrides(given: Iterable[str]) -> dict[str, str]:
    """Return ``{name in the file: metric}`` of ``METRIC=NAME`` options.

    Raises:
        UserError: one has no ``=``, an unknown metric, or a metric is named twice.
    """
    found: dict[str, str] = {}
    for text in given:
        metric, sign, name = text.partition("=")
        if not sign or not name:
            raise UserError(
                f"--metric {text}: expected METRIC=NAME.", hint="Example: --metric loss=my_loss"
            )
        full = SHORT.get(metric, metric)
        if full not in USUAL and not _PART.fullmatch(full):
            near = nearest(metric, [*SHORT, *USUAL])
            raise UserError(
                f"--metric {text}: there is no metric {metric!r}.",
                hint=f"Did you mean {near}? " * (near is not None) + f"Valid: {', '.join(SHORT)}",
            )
        if full in found.values():
            raise UserError(f"--metric {text}: {metric} is given twice.")
        found[name] = full
    return found


def bare(name: str) -> str:
    """Return a column's name without the name of the run that W&B puts before it."""
    match = _WANDB.fullmatch(name)
    return (match["name"] if match else name).strip()


def metric_of(name: str) -> tuple[str, int] | None:
    """Return the metric that a name usually means, and its rank (0 is best); None if none."""
    low = bare(name).lower()
    if _PART.fullmatch(bare(name)):
        return bare(name), 0
    for spelled in (low, low.replace(" ", "_")):
        for metric, names in USUAL.items():
            if spelled in names:
                return metric, names.index(spelled)
    return None


def nothing_known(path: object, names: Iterable[str]) -> UserError:
    """Return the error of a file that has no metric that the diagnosis reads."""
    have = sorted(set(names))
    shown = ", ".join(have[:12]) + (f" and {len(have) - 12} more" if len(have) > 12 else "")
    every = [one for usual in USUAL.values() for one in usual]
    near = next((name for name in have if nearest(bare(name).lower(), every)), None)
    example = near or (have[0] if have else "NAME")
    return UserError(
        f"{path}: no known metric in it. It has: {shown or 'nothing'}.",
        hint=f"Name the columns, for example: --metric {shlex.quote(f'loss={example}')}",
    )


def no_such_name(path: object, name: str, names: Iterable[str]) -> UserError:
    """Return the error of a ``--metric`` whose name the file does not have."""
    have = sorted(set(names))
    near = nearest(name, have)
    return UserError(
        f"{path}: it has no {name!r}.",
        hint=(f"Did you mean {near!r}? " if near else "") + f"It has: {', '.join(have[:12])}",
    )
