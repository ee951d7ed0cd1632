"""Rules about what a loss is worth: computed wrongly, too low for text, or learnt by heart."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lehr.analysis.batches import EPOCH, PASSES_SOURCE
from lehr.analysis.diagnosis.signs import (
    BYTE_VOCABULARY,
    LASTS,
    LEAST_BITS,
    LOSS,
    VAL_LOSS,
    DiagnosedRun,
    FiniteCurve,
    Floats,
    Sign,
    last_run,
    least_loss,
    median,
    noise,
    rule,
    trailing_median,
    trend,
)

CHECK, SAME_TOKENS = "raw_ce_fp32", "loss_same_tokens"
TOO_GOOD = 0.015
"""Nats by which a loss must be below its fp32 check on the same tokens. bf16 explains 0.01."""
LOW_POINTS = 40  # Logged points of which nine tenths must be below what text allows.
RISES_BY = 0.005  # Least share of its lowest value by which a validation loss must rise.
CLIMBS = 3.5  # Standard errors by which it must climb.
LEARNT_BY_HEART = 0.7  # Training loss as a share of the validation's.


@rule("too_good", (CHECK,), (SAME_TOKENS,), points=LASTS)
def too_good(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a low-precision loss that falls while the cross entropy in fp32 rises.

    The check covers a few sequences, so it is compared with the training's loss on the same ones,
    and with nothing else: a whole batch may be easier or harder than they.
    """
    check, same = run.series(CHECK), run.series(SAME_TOKENS)
    if not len(check) or not len(same):
        return
    steps, here, there = np.intersect1d(check.steps, same.steps, return_indices=True)
    gaps = check.values[here] - same.values[there]
    if len(gaps) < LASTS:
        return
    limit = max(TOO_GOOD, 3 * noise(gaps))
    under = gaps > limit
    if not under[-LASTS:].all():
        return
    began = int(steps[last_run(under)])
    yield Sign(
        began,
        f"the training loss has been under its fp32 check since step {began:,}, now by "
        f"{gaps[-1]:.2f}: the loss is too good to be true",
        "Compute the cross entropy in fp32, outside autocast (loss: chunked)",
        "certain",
        "a softmax or a sum in 16-bit numbers",
        "the check computes the same tokens again in fp32",
    )


@rule("implausible", points=LOW_POINTS)
def implausible(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a loss below what text allows, in the first pass over the corpus.

    Without logged epochs every pass is taken for the first.
    """
    first, loss = run.first_loss(), run.series(LOSS)
    if first is None or first < 0.7 * BYTE_VOCABULARY or len(loss) < LOW_POINTS:
        return
    limit = least_loss(first)
    recent = loss.values[-LOW_POINTS:]
    if median(recent) >= limit or (recent >= limit).mean() > 0.1:
        return
    if (run.epochs(EPOCH) or 0.0) > 1.0:
        return
    check = run.series(CHECK)
    if len(check) and median(check.values[-LASTS:]) >= limit:
        return  # The loss is computed wrongly: the concern of ``too_good``.
    began = int(loss.steps[min(last_run(loss.values < limit), len(loss) - LOW_POINTS)])
    yield Sign(
        began,
        f"the training loss is {median(recent):.3f} since step {began:,}, below the "
        f"{limit:.2f} that text allows a token",
        "Check that targets are shifted by one token, that attention is causal, and that the "
        "corpus has no copies: inspect one batch by hand",
        "likely",
        "the model sees its targets, or the corpus repeats itself",
        f"{LEAST_BITS} bits a byte: Shannon 1951; Deletang et al. 2023, arXiv:2309.10668",
    )


@rule("memorization", (LOSS,), (VAL_LOSS, EPOCH), points=LASTS)
def memorization(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a training loss far under the validation's, or near zero, after several passes."""
    loss, validation = run.series(LOSS), run.series(VAL_LOSS)
    epochs = run.epochs(EPOCH)
    if len(loss) < 10 or (epochs is not None and epochs <= 1.0):
        return
    far: list[int] = []
    ratio = 1.0
    for step, value in zip(validation.steps[-LASTS:], validation.values[-LASTS:], strict=True):
        before = loss.until(int(step)).values[-10:]
        if len(before) and median(before) < LEARNT_BY_HEART * value:
            far.append(int(step))
            ratio = median(before) / value
    first = run.first_loss()
    recent = median(loss.values[-10:])
    passes = f" after {epochs:.1f} passes over the corpus" if epochs is not None else ""
    if len(far) == LASTS:
        began = far[0]
        seen = f"train/loss is {ratio:.0%} of val/loss since step {began:,}{passes}"
    elif epochs is not None and first is not None and recent < least_loss(first):
        began = int(loss.steps[-10])
        seen = f"train/loss is {recent:.3f}{passes}: the corpus is known by heart"
    else:
        return
    yield Sign(
        began,
        seen,
        "More data, or at most 4 passes over it",
        "likely",
        "a corpus that is small for the model and seen many times",
        f"{PASSES_SOURCE}: up to 4 passes are nearly as good as new data",
    )


@rule("overfitting", (LOSS,), (VAL_LOSS,), points=LASTS + 1)
def overfitting(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a validation loss that left its lowest value while the training loss fell on.

    Single evaluations may go down again: the last three together must be above by their noise, or
    all since the lowest value must climb by a trend that is beyond it.
    """
    validation, training = run.series(VAL_LOSS), run.series(LOSS)
    if len(validation) <= LASTS or not len(training):
        return
    values = validation.values
    lowest = int(np.argmin(values))
    after = values[lowest + 1 :]
    high = after[-LASTS:]
    if len(high) < LASTS or median(high) < (1 + RISES_BY) * values[lowest]:
        return
    # A smooth curve makes noise seem larger than it is. The training loss is curved alike, so
    # what lies between the two is straighter, but has the noise of both: the smaller one counts.
    wobble = min(_bends(values, lowest), _bends(values - _level_at(training, validation), lowest))
    # The lowest value is low by chance too: the trend is that of the evaluations after it.
    rose, error = trend(validation.steps[lowest + 1 :], after, wobble)
    above = high.min() > values[lowest] + 5 * wobble and after[-1] >= median(after[:LASTS])
    if not (above or rose > CLIMBS * error):
        return
    rose = median(high) - values[lowest]
    began = int(validation.steps[lowest])
    since = training.where(training.steps > began)
    recent = since.values[since.steps > validation.steps[-LASTS - 1]]
    count = len(since) // 3
    if not count or not len(recent):
        return
    # A training loss that rises too is a divergence, or a bump.
    level, error = median(since.values[:count]), 1.25 * noise(since.values)
    rose_too = median(since.values[-count:]) - level + error * math.sqrt(2 / count)
    peak = trailing_median(recent, min(9, len(recent))).max() - level - 4 * error / 3
    if max(rose_too, peak) > rose / 2:
        return
    yield Sign(
        began,
        f"val/loss has risen from {values[lowest]:.3f} to {values[-1]:.3f} since step "
        f"{began:,} while train/loss fell",
        "At least twice the data, or half of the passes; the best checkpoint is kept",
        "likely",
        "too many passes over too little data",
        PASSES_SOURCE,
    )


def _bends(values: Floats, lowest: int) -> float:
    """Return the noise of a smooth curve by its bends.

    It has a kink at its lowest value, and before it a curvature that a third difference does not
    see.
    """
    before = np.diff(values[:lowest], n=3) / math.sqrt(20)
    bends = np.concatenate([before, np.diff(values[lowest + 1 :], n=2) / math.sqrt(6)])
    return 1.4826 * median(np.abs(bends))


def _level_at(training: FiniteCurve, validation: FiniteCurve) -> Floats:
    """Return the median training loss within half an interval of each evaluation."""
    half = np.median(np.diff(validation.steps)) / 2
    first, last = (
        np.searchsorted(training.steps, validation.steps + shift, "right")
        for shift in (-half, half)
    )
    return np.array(
        [
            median(training.values[begin:end]) if end > begin else math.nan
            for begin, end in zip(first, last, strict=True)
        ]
    )
