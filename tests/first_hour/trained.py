"""Small real trainings of a session, and what must hold of each."""

from __future__ import annotations

import math
import statistics
import subprocess
from pathlib import Path
from typing import Any

from first_hour.parts import Failed, NotHere, Session
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values
from lehr_testing.trainer import finish, losses, make_run, records, training
from lehr_trainer.contract import layout

_ON_GPU: dict[str, Any] = {
    # Heads of 64, and sizes that FP8's matrix products take.
    "model": {
        "preset": "tiny",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "batch": {"sequences": 16, "sequence_length": 256, "micro_batch": 8},
    "steps": 60,
    "validation": {"tokens": 4096, "share": 0.1, "every": 30},
    "checkpoint": {"every": 30},
    "diagnostics": {
        "parts_every": 10,
        "quality_every": 20,
        "quality_tokens": 1024,
        "sample": {"every": 30, "prompt": "the lehr ", "tokens": 16},
    },
    "precision": {"compute": "bf16"},
    "compile": {"scope": "none"},
    "deterministic": False,
}
_ON_CPU: dict[str, Any] = {
    "batch": {"sequences": 4, "sequence_length": 64, "micro_batch": 2},
    "steps": 8,
    "validation": {"tokens": 256, "share": 0.1, "every": 4},
    "checkpoint": {"every": 4},
    "diagnostics": {
        "parts_every": 4,
        "quality_every": 4,
        "quality_tokens": 128,
        "sample": {"every": 4, "prompt": "the lehr ", "tokens": 4},
    },
    "precision": {"compute": "fp32"},
}

TIMEOUT_S = 900.0
"""Longest time for a run; compiling takes most of it."""
SAME_TOKENS = 0.05
"""Nats by which the loss of a step may differ from its check in fp32 on the same tokens."""
_REFUSALS = ("is not installed", "cannot be imported", "needs compute capability", "needs a CUDA GPU",
             "needs a GPU with FP8", "needs a newer", "needs torch 2.")  # fmt: skip
"""Words of the trainer's errors about what a machine lacks."""


def values(session: Session, **changes: Any) -> dict[str, Any]:
    """Return the config of a run of the session's size; ``changes`` replace whole fields."""
    corpus = session.folder / "corpus"
    if not corpus.exists():
        text_corpus(corpus)
    size = _ON_GPU if session.machine.on_cuda else _ON_CPU
    return train_values(corpus, **{**size, "device": session.machine.device, **changes})


def train(
    session: Session,
    folder: Path,
    *,
    ranks: int = 1,
    code: str = "",
    fails: bool = False,
    **changes: Any,
) -> Path:
    """Train the run in ``folder`` and return its newest attempt.

    Args:
        session: has the machine and the prepared data.
        folder: made if it is not there; else the run goes on.
        ranks: with several, on as many GPUs.
        code: executed in each rank first; see ``lehr_testing.trainer.sabotage``.
        fails: whether it must fail, because the code disturbs it.
        **changes: of the config; only of a new run.

    Raises:
        Failed: it ended otherwise than it should.
        OutOfTime: the session's time limit ended it.
        NotHere: the trainer says what this machine lacks.
    """
    if not (folder / layout.CONFIG).exists():
        config = values(session, **changes)
        make_run(folder, session.folder / "corpus", **config)
    data = session.folder / "data"
    within_s = min(TIMEOUT_S, session.left_s)
    with training(
        folder,
        ranks=ranks,
        data=data,
        code=code,
        command_line=session.machine.on_cuda,
    ) as process:
        try:
            ended, output = finish(process, within_s=within_s)
        except subprocess.TimeoutExpired as error:
            if within_s < TIMEOUT_S:
                raise session.out_of_time() from error
            raise
    if not (attempts := layout.attempts(folder)):
        raise Failed(f"it ended with {ended} before its attempt began: {output[-2000:]}")
    attempt = attempts[-1]
    if fails == (ended != 0):
        return attempt
    if fails:
        raise Failed(f"it ended with 0, although it was disturbed; see {attempt}")
    message = next(
        (r["message"] for r in records(attempt, "finished") if r.get("message")),
        (output.strip().splitlines() or ["no message"])[-1],
    )
    if any(words in message for words in _REFUSALS):
        raise NotHere(message)
    raise Failed(f"it ended with {ended}: {message}; see {layout.rank_log(attempt, 0)}")


def figures(attempt: Path) -> dict[str, Any]:
    """Return the figures of an attempt for the report."""
    metrics = records(attempt, "metrics")
    # The first steps compile and fill caches.
    steady = [record["values"] for record in metrics[len(metrics) // 2 :]]
    found: dict[str, Any] = {
        "first loss": metrics[0]["values"]["train/loss"],
        "last loss": metrics[-1]["values"]["train/loss"],
        "step (ms)": 1e3 * statistics.median(v["step_time_s"] for v in steady),
        "tokens/s": statistics.median(v["tokens_per_s"] for v in steady),
    }
    if "mfu" in steady[-1]:
        found["MFU (%)"] = 100 * statistics.median(v["mfu"] for v in steady if "mfu" in v)
    if "memory/peak_bytes" in steady[-1]:
        found["peak (MB)"] = max(v["memory/peak_bytes"] for v in steady) / 1e6
    warnings = records(attempt, "warning")
    if warnings:
        found["warnings"] = "; ".join(warning["message"] for warning in warnings)
    return found


def require_sound(attempt: Path) -> None:
    """Require that a run trained: complete, finite, falling, and its own checks agree.

    Raises:
        Failed: with what does not hold.
    """
    ends = records(attempt, "finished")
    if not ends or ends[0]["outcome"] != "completed":
        raise Failed(f"it did not complete: {ends or 'no record of its end'}")
    curve = losses(attempt)
    wrong = {step: loss for step, loss in curve.items() if not _finite(loss)}
    if wrong:
        raise Failed(f"losses are not finite: {wrong}")
    if not curve[max(curve)] < curve[min(curve)]:
        raise Failed(f"the loss did not fall: {curve[min(curve)]} to {curve[max(curve)]}")
    steps = [record for record in records(attempt, "metrics") if "raw_ce_fp32" in record["values"]]
    if not steps:
        raise Failed("no step has the loss's check in fp32 (raw_ce_fp32)")
    for record in steps:
        gap = abs(record["values"]["raw_ce_fp32"] - record["values"]["loss_same_tokens"])
        if not gap < SAME_TOKENS:
            raise Failed(f"at step {record['step']} the loss and its check in fp32 differ by {gap}")
    if not records(attempt, "sample"):
        raise Failed("no sample was written")
    if not records(attempt, "evaluation") or not layout.checkpoints(attempt):
        raise Failed("there is no evaluation or no checkpoint")


def gap_between(one: dict[int, float], other: dict[int, float]) -> float:
    """Return the largest difference of two curves.

    Raises:
        Failed: they do not have the same steps.
    """
    if one.keys() != other.keys():
        raise Failed(f"the runs have other steps: {sorted(one)} and {sorted(other)}")
    return max(abs(loss - other[step]) for step, loss in one.items())


def require_near(gap: float, bound: float, what: str) -> None:
    if not gap <= bound:
        raise Failed(f"{what} differ by {gap:.3g}; at most {bound:.3g} is expected")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
