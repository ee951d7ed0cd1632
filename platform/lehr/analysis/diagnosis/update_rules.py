"""Rules about gradients and updates: exploding or dead parts, a rate that is too low or high."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lehr.analysis.diagnosis.signs import (
    GRAD_NORM,
    LASTS,
    LOSS,
    LR,
    MIN_POINTS,
    DiagnosedRun,
    FiniteCurve,
    Sign,
    last_run,
    median,
    rule,
    trailing_median,
    trend,
)

EXPLODES_BY = 5.0
"""Factor over the lowest level. As the rate decays, norms of healthy runs rise by up to 3."""
PART_EXPLODES_BY = 10.0
DEAD = 1e-4  # Gradient norm of a part beside the median of the others.
USUAL_UPDATE = 1e-3  # Usual size of an update beside its weights.
LOW_UPDATE, LEAST_UPDATE = 2e-4, 5e-5
"""Below the first the loss decides; below the second the learning rate is too low in any case."""
LARGE_UPDATE = 0.025
"""Above it the learning rate is too high. Good runs of a model of 131 k parameters had up to 0.016,
runs at 30 times the best rate 0.035 and more; larger models have less."""
UPDATE_SOURCE = "Karpathy 2022, makemore part 3: updates of about 1e-3 of the weights"
STILL_HIGH = 0.75  # Share of the first loss above which a run has hardly learnt.
LOW_LR_STEPS = 150
"""Fewest steps after the warmup before the loss can show that the rate is too low."""


@rule("exploding", (GRAD_NORM,), points=MIN_POINTS, after_warmup=True)
def exploding(run: DiagnosedRun) -> Iterator[Sign]:
    norms = run.after_warmup(GRAD_NORM)
    if not len(norms):
        return
    width = max(10, len(norms) // 25)
    if len(norms) < 2 * width:
        return
    smooth = trailing_median(norms.values, width)
    lowest = int(np.argmin(smooth))
    usual = float(smooth[lowest])
    high = smooth > EXPLODES_BY * usual
    if usual <= 0 or not high[-max(LASTS, width // 2) :].all():
        return
    began = int(norms.steps[width - 1 + last_run(high)])
    yield Sign(
        began,
        f"the gradient norm before clipping went from {usual:.2g} to {smooth[-1]:.2g} by step "
        f"{int(norms.steps[-1]):,}",
        "A half to a tenth of the learning rate; see which part grows in the norms by part",
        "likely",
        "a learning rate that is too high, or a layer without normalization",
        "Wortsman et al. 2023, arXiv:2309.14322: norms grow before the loss does",
    )


@rule("exploding_part", ("params/*/grad_norm",), points=2 * LASTS, after_warmup=True)
def exploding_part(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a part whose gradient norm grows tenfold beside the other parts'."""
    parts = run.parts("grad_norm")
    for part, series in parts.items():
        others = _others(parts, part, series)
        if others is None or len(series) < 2 * LASTS:
            continue
        relative = series.values / others
        smooth = trailing_median(relative, LASTS)
        usual = median(smooth[: max(LASTS, len(smooth) // 2)])
        high = relative > PART_EXPLODES_BY * max(usual, 1e-12)
        # It must also have grown itself, not only the others shrunk.
        base = float(np.min(trailing_median(series.values, LASTS)))
        if not high[-LASTS:].all() or series.values[-1] < PART_EXPLODES_BY / 2 * base:
            continue
        began = int(series.steps[last_run(high)])
        yield Sign(
            began,
            f"the gradient norm of {part} is {relative[-1]:.2g} times the other parts' since step "
            f"{began:,}, before it was {usual:.2g} times",
            "A half to a third of the learning rate, or a norm on that part's inputs (for "
            "attention, QK norm)",
            "likely",
            "logits of attention or of the head that grow without bound",
            "Wortsman et al. 2023, arXiv:2309.14322",
        )
        return


@rule("dead_part", ("params/*/grad_norm",), points=LASTS, after_warmup=True)
def dead_part(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a part that gets no gradient while others do."""
    parts = run.parts("grad_norm")
    for part, series in parts.items():
        others = _others(parts, part, series)
        if others is None:
            continue
        dead = series.values < DEAD * others
        if not dead[-LASTS:].all():
            continue
        alive = np.flatnonzero(~dead)
        began = int(series.steps[int(alive[-1]) + 1 if len(alive) else 0])
        yield Sign(
            began,
            f"{part} has had no gradient since step {began:,} ({series.values[-1]:.2g}, the other "
            f"parts {others[-1]:.2g})",
            "Check that its parameters require gradients, are in the optimizer and are used in "
            "the forward pass",
            "certain",
            "frozen or detached parameters, or activations that are all zero",
        )
        return


@rule("low_lr")
def low_lr(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect updates that are too small, by update/weight where it is logged, and by the loss.

    Only while the rate is above half of its peak: schedules lower it on purpose.
    """
    ratio, began = _update_ratio(run)
    loss = run.series(LOSS).until(_end_of_high_rate(run))
    hardly = _hardly_learnt(run, loss)
    if ratio is not None and ratio >= LOW_UPDATE:
        return
    if not hardly and (ratio is None or ratio >= LEAST_UPDATE):
        return
    parts = []
    if ratio is not None:
        parts.append(f"an update is {ratio:.1g} of its weights, usual is {USUAL_UPDATE:g}")
    if hardly:
        share = median(loss.values[-10:]) / loss.values[0]
        parts.append(
            f"at step {int(loss.steps[-1]):,} the loss is still {share:.0%} of the first and falls "
            "slowly"
        )
    factor = min(100.0, max(3.0, USUAL_UPDATE / ratio)) if ratio else 10.0
    yield Sign(
        began,
        "; ".join(parts),
        f"About {factor:.0f} times the learning rate, or a sweep around it in factors of 3",
        "likely",
        "the learning rate is too low, or in other units than the optimizer expects",
        UPDATE_SOURCE,
    )


@rule("high_lr", ("params/*/update_ratio",), points=LASTS, after_warmup=True)
def high_lr(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect updates that are too large for their weights, while the rate is near its peak."""
    ratio, began = _update_ratio(run)
    if ratio is None or ratio < LARGE_UPDATE:
        return
    divisor = min(100.0, max(3.0, ratio / (5 * USUAL_UPDATE)))
    yield Sign(
        began,
        f"an update is {ratio:.2g} of its weights, usual is {USUAL_UPDATE:g}",
        f"1/{divisor:.0f} of the learning rate, or a sweep below it in factors of 3",
        "likely",
        "the learning rate is too high: weights forget faster than they learn",
        UPDATE_SOURCE,
    )


def _update_ratio(run: DiagnosedRun) -> tuple[float | None, int]:
    """Return the newest update/weight while the rate was high, and the first step that logged one.

    The median over the last points of all parts but the embedding, whose rare tokens stand still.
    """
    end = _end_of_high_rate(run)
    ratios = [
        series.until(end)
        for part, series in run.parts("update_ratio").items()
        if part != "embedding"
    ]
    newest = [series.values[-LASTS:] for series in ratios if len(series) >= LASTS]
    began = min([int(s.steps[0]) for s in ratios if len(s)], default=run.warmup_steps + 1)
    return (median(np.concatenate(newest)) if newest else None), began


def _hardly_learnt(run: DiagnosedRun, loss: FiniteCurve) -> bool:
    """Whether the loss still falls, and has hardly left that of untrained weights.

    Not one that first rose far above it: there the rate is too high.
    """
    if run.total_steps is None or run.above_untrained() is not None:
        return False
    first = run.first_loss()
    late = run.warmup_steps + max(LOW_LR_STEPS, 0.15 * run.total_steps)
    if first is None or len(loss) < 30 or loss.steps[-1] < late:
        return False
    if median(loss.values[-10:]) < STILL_HIGH * first:
        return False
    recent = loss.last(len(loss) // 2)
    rose, error = trend(recent.steps, recent.values)
    return -rose > 3 * error


def _end_of_high_rate(run: DiagnosedRun) -> int:
    """Return the last step at which the rate is above half of its peak."""
    rates = run.series(LR)
    if not len(rates) or rates.values.max() <= 0:
        return int(0.5 * run.least_steps)
    return int(rates.steps[np.flatnonzero(rates.values >= 0.5 * rates.values.max())[-1]])


def _others(parts: dict[str, FiniteCurve], part: str, series: FiniteCurve) -> np.ndarray | None:
    """Return the median norm of the other parts at the part's steps; None if there are none."""
    found = [
        np.interp(series.steps, other.steps, other.values)
        for name, other in parts.items()
        if name != part
    ]
    if not found:
        return None
    median = np.median(np.stack(found), axis=0)
    return median if (median > 0).all() else None
