"""Rules about the training loss alone: not finite, diverging, spikes, oscillation, stagnation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from lehr.analysis.batches import EPOCH
from lehr.analysis.diagnosis.signs import (
    LASTS,
    LOSS,
    MIN_POINTS,
    UNTRAINED_WIDTH,
    DiagnosedRun,
    FiniteCurve,
    Sign,
    centred_median,
    last_run,
    least_loss,
    median,
    noise,
    robust_trend,
    rule,
    trailing_median,
)

SMOOTH = 25  # A curve is smoothed over a 25th of its points.
RISES_BY = 0.05  # Least rise of the smoothed loss in nats that counts, besides six standard errors.
BUMP = 0.2  # Share of the lowest loss up to which a rise may be a bump, which recovers.
CLIMBS_BY = 0.005
"""Least share of the loss by which it must climb from the first to the last third of a rise."""
FIRST_SHARE = 0.02
"""Share of the first loss by which a loss may stay above it, besides four standard deviations."""
MOST_PERIOD = 16  # Longest period of a fast oscillation, in logged points.
HALF_WINDOW = (64, 96)
"""Fewest and most points in each half of the window in which an oscillation must be seen."""
PEAK_SHARE = 0.5
"""Share of the spectrum in one peak. With 64 points of white noise, Fisher's test gives 1e-7 for
each half, and both halves must agree."""


COMES_AGAIN = 0.35  # Least correlation of the loss with itself a few periods before.


@rule("nan")
def nan(run: DiagnosedRun) -> Iterator[Sign]:
    curve = run.curves.get(LOSS)
    if curve is None:
        return
    at = np.flatnonzero(~np.isfinite(np.asarray(curve.values, np.float64)))
    if len(at):
        step, value = int(curve.steps[at[0]]), float(curve.values[at[0]])
        yield Sign(
            step,
            f"the loss became {value} at step {step:,}",
            "A half to a tenth of the learning rate, a longer warmup or tighter gradient "
            "clipping; in fp16, look for overflow",
            "certain",
            "a step that was too large, or an overflow of 16-bit numbers",
        )


@rule("diverging", points=MIN_POINTS, after_warmup=True)
def diverging(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a loss above that of untrained weights, or one that left its lowest value for long."""
    yield from itertools.islice(itertools.chain(_above_untrained(run), _left_lowest(run)), 1)


def _above_untrained(run: DiagnosedRun) -> Iterator[Sign]:
    high = run.above_untrained()
    if high is None:
        return
    peak, last = float(high.values.max()), median(run.series(LOSS).values[-UNTRAINED_WIDTH:])
    yield Sign(
        int(high.steps[0]),
        f"the loss rose above that of untrained weights, from {run.first_loss():.3f} to {peak:.3f} "
        f"by step {int(high.steps[high.values.argmax()]):,}; it is {last:.3f} now",
        "A tenth of the learning rate, a longer warmup or tighter gradient clipping",
        "likely",
        "the learning rate is too high, or the first steps were taken without a warmup",
        "Kalra & Barkeshli 2024, arXiv:2406.09405",
    )


def _left_lowest(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a smoothed loss that has left its lowest value and does not come back.

    Recovery from a spike gets a fifth of the run's length; a loss that rises or stays gets 6 %, and
    a fortieth if it is too high for a bump. If the length is not known, all get a fifth of the
    steps so far. A smaller rise must be a trend (``_climbs``). The first loss counts as a low
    value, with a margin, since it is a single point.
    """
    loss = run.after_warmup(LOSS)
    if not len(loss):
        return
    width = max(9, len(loss) // SMOOTH)
    if len(loss) < width + LASTS:
        return
    smooth, ends = trailing_median(loss.values, width), loss.steps[width - 1 :]
    lowest, least = float(smooth.min()), run.first_loss()
    spread = noise(loss.values)
    if least is not None and lowest > least + FIRST_SHARE * abs(least) + 4 * spread:
        lowest = least
    # 1.25: standard error of a median beside that of a mean. Neighbours may be alike: then the
    # windows scatter more than their points tell.
    error = max(1.25 * spread / math.sqrt(width), noise(smooth[::-width]))
    up = smooth > lowest + RISES_BY + 6 * error
    first = last_run(up)
    high = smooth[first:]
    half, rose = len(high) // 2, float(max(high, default=lowest) - lowest)
    fell = median(high[:half]) - median(high[half:]) if half else 0.0
    patient = run.total_steps is None or fell > max(3 * error, 0.1 * rose)
    share = 0.2 if patient else 0.025 if rose > BUMP * lowest else 0.06
    lasted = ends[-1] - ends[first] if len(high) >= max(LASTS, width // 2) else 0
    if lasted < run.least_steps * share:
        first = int(smooth.argmin())
        if not _climbs(run, loss.where(loss.steps > ends[first])):
            return
    began = int(ends[first])
    yield Sign(
        began,
        f"the loss rose from {lowest:.3f} to {smooth[-1]:.3f} since step {began:,}",
        "A half to a tenth of the learning rate, from a checkpoint before that step",
        "likely",
        "the learning rate is too high",
        "Zhang et al. 2022 (OPT), arXiv:2205.01068; Wortsman et al. 2023, arXiv:2309.14322",
    )


def _climbs(run: DiagnosedRun, since: FiniteCurve) -> bool:
    """Whether the points since the lowest value climb on, by their trend and in each third."""
    share = 0.2 if run.total_steps is None else 0.08
    if len(since) < MIN_POINTS or since.steps[-1] - since.steps[0] < share * run.least_steps:
        return False
    low, middle, high = (median(part) for part in np.array_split(since.values, 3))
    error = 1.25 * noise(since.values) * math.sqrt(12 / len(since))
    if min(high - middle, middle - low) < 1.5 * error or high - low < CLIMBS_BY * low:
        return False
    rose, scatter = robust_trend(since)
    return rose > 5 * max(scatter, error)


@rule("spikes", points=MIN_POINTS, after_warmup=True)
def spikes(run: DiagnosedRun) -> Iterator[Sign]:
    loss = run.after_warmup(LOSS)
    if not len(loss):
        return
    above = loss.values - centred_median(loss.values, 31)
    high = np.flatnonzero(above > max(10 * noise(loss.values), 0.3))
    if not len(high):
        return
    # Points within five of each other are one spike.
    starts = high[np.flatnonzero(np.diff(high, prepend=-10) > 5)]
    if len(starts) >= LASTS:
        yield Sign(
            int(loss.steps[starts[0]]),
            f"the loss spiked {len(starts)} times, last at step {int(loss.steps[starts[-1]]):,}",
            "Half of the learning rate, a beta2 of 0.95 instead of 0.999, twice the warmup, or "
            "skip-step",
            "likely",
            "the learning rate is too high, or Adam's second moment reacts too slowly",
            "Chowdhery et al. 2022 (PaLM), section 5.1; Molybog et al. 2023, arXiv:2304.09871",
            int(loss.steps[max(starts[-1] - 1, 0)]) + 1,
        )


@rule("oscillating", points=2 * HALF_WINDOW[0] + MOST_PERIOD // 2, after_warmup=True)
def oscillating(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect one short period that holds much of the loss's variance, twice in a row."""
    loss = run.after_warmup(LOSS)
    half = min(HALF_WINDOW[1], len(loss) // 2)
    half = min(half, (len(loss) - MOST_PERIOD // 2) // 2)
    if half < HALF_WINDOW[0]:
        return
    # A median over the longest period leaves only faster changes.
    margin = MOST_PERIOD // 2
    recent = loss.values[-2 * half - margin :]
    padded = np.concatenate([recent, np.full(margin, np.median(recent[-margin:]))])
    rest = recent[margin:] - trailing_median(padded, 2 * margin + 1)
    now, before = rest[-half:], rest[:half]
    share, cycles, size = _peak(now)
    share_before, cycles_before, size_before = _peak(before)
    if min(share, share_before) < PEAK_SHARE or abs(cycles - cycles_before) > 1:
        return
    if min(size, size_before) < max(0.01, 0.01 * median(loss.values[-half:])):
        return
    period = half / cycles
    # One bump has a peak in its spectrum too, but does not come again.
    if min(_returns(now, period), _returns(before, period)) < COMES_AGAIN:
        return
    every = float(loss.steps[-1] - loss.steps[-half]) / (half - 1)
    if _is_an_epoch(run, period * every):
        return
    began = int(loss.steps[-2 * half])
    yield Sign(
        began,
        f"the loss has gone up and down by {size:.2g} every {period:.2g} logged steps since step "
        f"{began:,}",
        "Half of the learning rate; if that changes nothing, look for an order in the data that "
        "repeats with this period",
        "likely",
        "steps larger than the curvature allows, or batches that alternate between sources",
        "Cohen et al. 2021, arXiv:2103.00065; Fisher 1929 for the test",
    )


@rule("stagnant", points=75, after_warmup=True, length=True)  # 30 in 40 % of them.
def stagnant(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a loss that stopped falling in mid-schedule.

    A loss that follows a power law of the steps with an exponent up to 1 falls in each stretch by
    at least half of what it fell in the stretch before whose ends have the same ratio, up to 2.
    """
    if run.total_steps is None:
        return
    loss = run.after_warmup(LOSS)
    # In the schedule's last part the rate is near its minimum, so a flat loss is expected.
    loss = loss.until(int(0.7 * run.total_steps))
    if len(loss) < 4 * LASTS * LASTS:
        return
    first = run.first_loss()
    if first is not None and median(loss.values[-10:]) < least_loss(first):
        return
    end = int(loss.steps[-1])
    for share in (0.25, 0.4):
        begin = end - int(share * run.total_steps)
        recent = loss.where(loss.steps > begin)
        if begin < run.warmup_steps + 0.05 * run.total_steps or not 30 <= len(recent) < len(loss):
            continue
        # A loss above an earlier level is the concern of ``diverging``.
        earlier = loss.values[: len(loss) - len(recent)]
        width = min(len(earlier), max(15, len(earlier) // 8))
        error = 1.25 * noise(earlier) / math.sqrt(width)
        if median(recent.values) > trailing_median(earlier, width).min() + RISES_BY + 4 * error:
            continue
        if _rises_at_its_end(recent):
            continue
        if _fell_too_little(loss, recent, begin) or (share > 0.3 and _is_flat(recent)):
            began = int(recent.steps[0])
            yield Sign(
                began,
                f"the loss has not fallen since step {began:,} ({median(recent.values):.3f})",
                "Check update/weight: under 1e-4, try 3 to 10 times the learning rate; around 1e-3 "
                "or above, a third of it; otherwise the data or the model's size is the limit",
                "possible",
                "a learning rate that is far too low or too high, or data without more to learn",
                "Hestness et al. 2017, arXiv:1712.00409: loss falls as a power law",
            )
            return


def _fell_too_little(loss: FiniteCurve, recent: FiniteCurve, begin: int) -> bool:
    """Whether it fell by far less than in the stretch before of the same ratio, at most 2."""
    end = int(recent.steps[-1])
    earlier = loss.where((loss.steps > begin * begin / end) & (loss.steps <= begin))
    if len(earlier) < 15 or end > 2.5 * begin:
        return False
    rose, error = robust_trend(recent)
    rose_before, error_before = robust_trend(earlier)
    # A spike at the begin of the stretch makes its slope too steep, but not its lowest levels.
    lowest = np.minimum.accumulate(trailing_median(loss.values, 9))
    ends = loss.steps[8:]
    first = int(np.searchsorted(ends, earlier.steps[0]))
    last = int(np.searchsorted(ends, earlier.steps[-1]))
    fell, fell_before = -rose, min(-rose_before - error_before, float(lowest[first] - lowest[last]))
    return fell < 0.15 * fell_before and fell + 2.5 * error < 0.4 * fell_before


def _rises_at_its_end(recent: FiniteCurve) -> bool:
    """Whether the last eighth is above another one: a divergence begins, or a spike."""
    levels = [median(part) for part in np.array_split(recent.values, 8)]
    error = 1.25 * noise(recent.values) / math.sqrt(len(recent) / 8)
    return levels[-1] - min(levels) > 0.01 + 4 * error


def _is_flat(recent: FiniteCurve) -> bool:
    rose, error = robust_trend(recent)
    return -rose + 2 * error < 0.006 * median(recent.values)


def _peak(rest: np.ndarray) -> tuple[float, float, float]:
    """Return the highest peak of the spectrum: its share, cycles in the window, and height.

    Frequencies below one cycle in ``MOST_PERIOD`` points are left out, as are outliers.
    """
    bound = 5 * 1.4826 * median(np.abs(rest)) + 1e-12
    rest = np.clip(rest, -bound, bound)
    power = np.abs(np.fft.rfft(rest * np.hanning(len(rest)))) ** 2
    lowest = math.ceil(len(rest) / MOST_PERIOD)
    band = power[lowest:]
    # A Hann window spreads a tone over three bins.
    joined = np.convolve(band, np.ones(3), "same")
    at = int(np.argmax(joined))
    share = float(joined[at] / max(float(band.sum()), 1e-300))
    height = math.sqrt(2 * share * float(rest.var()))
    return share, float(lowest + at), 2 * height


def _returns(rest: np.ndarray, period: float) -> float:
    """Return the correlation with what was a few periods before, nearest to whole points."""
    periods = min((1, 2, 3), key=lambda n: abs(n * period - round(n * period)))
    lag = round(periods * period)
    ahead, behind = rest[lag:], rest[:-lag]
    size = math.sqrt(float(ahead @ ahead) * float(behind @ behind))
    return float(ahead @ behind) / max(size, 1e-300)


def _is_an_epoch(run: DiagnosedRun, period: float) -> bool:
    """Whether a period in steps is a whole number of passes over the corpus, which may repeat."""
    epochs = run.series(EPOCH)
    if len(epochs) < 2 or epochs.values[-1] < 2:
        return False
    passes = period * float(epochs.values[-1]) / float(epochs.steps[-1])
    return abs(passes - round(passes)) < 0.05 * max(1.0, passes) and round(passes) >= 1
