"""Rules about the machine and the data: slower steps or ranks, memory that grows, batches, lost
records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from lehr.analysis.batches import DIGEST, EPOCH, agreement, repetition
from lehr.analysis.diagnosis.signs import (
    LASTS,
    MIN_POINTS,
    DiagnosedRun,
    FiniteCurve,
    Sign,
    last_run,
    median,
    rule,
    trailing_median,
)

WAIT, STEP_TIME, SPEED = "data_wait_s", "step_time_s", "tokens_per_s"
MEMORY = ("memory/allocated_bytes", "memory/rss_bytes")  # The first that was logged is judged.
DATA_SHARE = 0.05
"""Share of a step's time spent waiting for data that causes an alert; the loader's goal is 0.01."""
SLOWER = 1.25  # Factor by which steps must be slower.
SLOW_POINTS, SPEED_POINTS = 30, 150
"""Logged points that must be slower, and that a run must have before it is judged."""
GROWS_BY = {"memory/allocated_bytes": 0.05, "memory/rss_bytes": 0.2}
"""Least growth over the judged half of a run. A process also holds pages of mapped files."""
BLOCKS = 8
OWN = ("ranks/max_own_time_s", "ranks/median_own_time_s")
SLOWEST = "ranks/slowest"
RANK_POINTS, RANK_S, RANK_LASTS, RANK_SLOWER = 50, 30.0, 0.8, 0.1
"""Logged points, and seconds of steps, of which such a share must have the same slowest rank; and
the share of a step by which its own part must be longer than that of the median rank. GPUs of one
kind differ by less. Other programs took a core of a shared machine for up to ten seconds.
"""


@rule("data_wait", (WAIT,), (STEP_TIME,), points=MIN_POINTS, after_warmup=True)
def data_wait(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a share of waiting that is too large in each of the last three stretches."""
    waits, times = run.after_warmup(WAIT), run.after_warmup(STEP_TIME)
    if not len(waits) or not len(times):
        return
    _, here, there = np.intersect1d(waits.steps, times.steps, return_indices=True)
    waited, took = waits.values[here][-3 * MIN_POINTS :], times.values[there][-3 * MIN_POINTS :]
    if len(waited) < MIN_POINTS:
        return
    shares = [
        float(w.sum() / max(t.sum(), 1e-9))
        for w, t in zip(np.array_split(waited, 3), np.array_split(took, 3), strict=True)
    ]
    if min(shares) <= DATA_SHARE:
        return
    step = int(waits.steps[here][-len(waited)])
    yield Sign(
        step,
        f"{float(waited.sum() / took.sum()):.0%} of a step is spent waiting for data",
        "Twice the data.workers, or data.loading: preload",
        "likely",
        "storage or decoding that is slower than the GPU",
        "Mohan et al. 2021 (data stalls), arXiv:2007.06775, measure this share; the limit of "
        f"{DATA_SHARE:.0%} is five times the loader's goal",
    )


@rule("slowdown", (SPEED, STEP_TIME), points=SPEED_POINTS, after_warmup=True)
def slowdown(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect steps that became slower and stay so.

    Single slow steps (an evaluation, a checkpoint, a profile) do not move a median. After a change
    of the batch's shape only the steps since then are compared.
    """
    speed = run.after_warmup(SPEED)
    times = run.after_warmup(STEP_TIME)
    if len(speed):
        times = FiniteCurve(speed.steps, 1 / np.maximum(speed.values, 1e-9))
    if not len(times):
        return
    changed = max((step for step in run.changes if step < times.steps[-1]), default=0)
    times = times.where(times.steps > changed)
    if len(times) < SPEED_POINTS:
        return
    width = max(SLOW_POINTS, len(times) // 25)
    # The first points after a start or a change include caches that fill.
    smooth = trailing_median(times.values[10:], width)
    if len(smooth) <= width:
        return
    usual = median(smooth[:-width][: max(width, len(smooth) // 2)])
    slow = times.values > (1 + SLOWER) / 2 * usual
    if usual <= 0 or smooth[-1] < SLOWER * usual or slow[-width:].mean() < 0.9:
        return
    began = int(times.steps[last_run(slow[:-width])])
    yield Sign(
        began,
        f"steps take {smooth[-1] / usual:.2f} times as long since step {began:,}",
        "Look at the node's clocks, temperature and neighbours; a restart on another node gives "
        "the speed back if it is the node",
        "likely",
        "a throttled or shared device, a slow network link, or storage",
        "Jiang et al. 2024 (MegaScale), arXiv:2402.15627",
    )


@rule("straggler", OWN[:1], OWN[1:], (STEP_TIME,), (SLOWEST,), points=RANK_POINTS)
def straggler(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect a rank for which the others wait.

    All ranks take the same time for a step. The slow one waits for nobody: most of it is its own.
    """
    series = [run.series(name) for name in (*OWN, STEP_TIME, SLOWEST)]
    steps = reduce(np.intersect1d, [curve.steps for curve in series])
    steps = steps[steps > run.places.after]
    if len(steps) < RANK_POINTS:
        return
    most, usual, times, slowest = (s.values[np.searchsorted(s.steps, steps)] for s in series)
    seconds = median(times) * (steps[-1] - steps[0]) / (len(steps) - 1)
    width = max(RANK_POINTS, len(steps) // 25, int(RANK_S / max(seconds, 1e-3)))
    extra = (most - usual) / np.maximum(times, 1e-9)
    ranks, counts = np.unique(slowest[-width:], return_counts=True)
    rank = ranks[counts.argmax()]

    def slow(last: int) -> bool:
        points = slice(last - width, last)
        same = (slowest[points] == rank).mean()
        return bool(same >= RANK_LASTS and median(extra[points]) > RANK_SLOWER)

    first = len(steps)
    while first >= width and slow(first):
        first -= width
    if first == len(steps):
        return
    began, share = int(steps[first]), median(extra[first:])
    place = f" ({run.places.ranks[int(rank)]})" if 0 <= rank < len(run.places.ranks) else ""
    yield Sign(
        began,
        f"the other ranks wait for rank {rank:.0f}{place} since step {began:,}: its own part of a "
        f"step is longer than that of the median rank by {share:.0%} of a step",
        "Look at the clock, temperature and neighbours of its GPU, and at the wait for data: steps "
        "would be shorter by about this share on another node",
        "likely",
        "a throttled or shared GPU, a slow loader or disk, or more work than others have",
        "Jiang et al. 2024 (MegaScale), arXiv:2402.15627",
    )


@rule("memory_creep", MEMORY, points=2 * BLOCKS * 5, after_warmup=True)
def memory_creep(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect memory that grows steadily, in each eighth of the run's newer half."""
    for name in MEMORY:
        memory = run.after_warmup(name, 2 * BLOCKS * 5)
        if not len(memory):
            continue
        recent = memory.last(len(memory) // 2)
        levels = np.array([median(part) for part in np.array_split(recent.values, BLOCKS)])
        grew = np.diff(levels)
        total = float(levels[-1] - levels[0])
        steady = bool((grew > 0.4 * total / (BLOCKS - 1)).all())
        if not steady or total < GROWS_BY[name] * float(levels[0]):
            return
        began = int(recent.steps[0])
        by_step = total / max(float(recent.steps[-1] - recent.steps[0]), 1.0)
        yield Sign(
            began,
            f"{name} grew from {levels[0] / 1e9:.2f} to {levels[-1] / 1e9:.2f} GB since step "
            f"{began:,}, about {by_step / 1e6:.2g} MB a step",
            "Look for tensors that are kept from step to step, such as losses that were not "
            "detached; save often enough to resume after running out of memory",
            "likely" if name == MEMORY[0] else "possible",
            "results that hold their graph, or a cache without a bound",
            "PyTorch FAQ: do not accumulate history across the training loop",
        )
        return


@rule("repeated_batches", (EPOCH,), (DIGEST,), points=LASTS + 1)
def repeated_batches(run: DiagnosedRun) -> Iterator[Sign]:
    digests, epochs = run.curves.get(DIGEST), run.curves.get(EPOCH)
    if digests is None or epochs is None:
        return
    found = repetition(digests, epochs, lasts=LASTS)
    if found is not None:
        yield Sign(
            found.step,
            f"step {found.step:,} had the same batch as step {found.earlier:,}, within one pass "
            f"over the corpus; {found.count:,} logged steps repeat a batch",
            "Look for copies in the corpus and for a change of the data order; the run learns "
            "from fewer tokens than it counts",
            "certain",
            "a loader that does not advance, or copies in the corpus",
        )


@rule("other_data", (DIGEST,))
def other_data(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect an attempt that trained on other batches at steps that an earlier one had taken.

    One step suffices: the digests of equal batches are always equal.
    """
    digests = run.curves.get(DIGEST)
    if digests is None:
        return
    differing = [agreement(digests, earlier).differs_from for earlier in digests.superseded]
    steps = [step for step in differing if step is not None]
    if steps:
        yield Sign(
            min(steps),
            f"since a resume, the batch of step {min(steps):,} is another one than before it",
            "Compare version, seed, batch and data of the attempts. To train on other data on "
            "purpose, fork the run",
            "certain",
            "another seed, corpus, batch size or version of the code",
        )


@rule("lost_records")
def lost_records(run: DiagnosedRun) -> Iterator[Sign]:
    """Report what the store knows to be lost; curves alone do not show it."""
    for loss in run.losses:
        yield Sign(
            loss.step,
            loss.seen,
            "Weights and later checkpoints are not concerned, but curves and logs lack this, and "
            "earlier checkpoints may be gone, too: `lehr db check` lists them. To have the record, "
            "repeat the run, or fork it from a checkpoint before it",
            "certain",
            "the run's folder was removed or cut while it trained, or the record was restored from "
            "an older backup",
        )
