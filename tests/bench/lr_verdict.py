"""How good the verdict on a learning rate is: regret, coverage and width of its intervals.

**Real sweeps** (tests/data/lr_sweeps.csv: 1,295 published pretraining runs, Step Law, arXiv:2503.04715).
A curve of 9 to 12 rates is thinned to every second, third or fourth rate, at each offset; the
verdict sees those, and is judged on the whole curve. Regret is the loss at its rate, between two
measured rates by linear interpolation over log rate, above the lowest of the curve. An interval
holds the truth if it comes within half a step (a factor of 1.19) of the rate with the lowest loss:
the truth is known no better. The settings were tuned on the 215M model and on synthetic
sweeps; the other sizes only report.

**Synthetic sweeps** of five families, grids from 5 to 12 rates, three noises and two depths, where the
best rate is known exactly.

Beside it, two simple rules: take the best trial, and the vertex of a parabola through the best trial
and its two neighbours.

    python tests/bench/lr_verdict.py [--draws 40]
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lehr.analysis.lr_fit import fit_learning_rate

DATA = Path(__file__).parents[1] / "data" / "lr_sweeps.csv"
HALF_STEP = 2**0.25
"""Half of the real sweeps' spacing, as a factor."""
Array = NDArray[np.float64]


class Case(NamedTuple):
    """A sweep, and what is known of its truth."""

    rates: Array
    losses: Array
    best: float
    cost: Callable[[float], float]
    """Loss of a rate above the best one's."""
    slack: float
    """Factor within which the truth is known."""


class Answer(NamedTuple):
    rate: float
    intervals: tuple[tuple[float, float], ...] = ()
    """With 68 and 95 %."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="of each family, grid, noise, depth")
    given = parser.parse_args()
    print(
        "| sweeps | n | regret, best trial | three-point parabola | verdict (1e-3) "
        "| held at 68 % | at 95 % | width at 68 % | at 95 % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size, curves in real_curves().items():
        for every in (1, 2, 3, 4):
            row(f"{size / 1e6:.0f}M, every {every}", list(thinned(curves, every)))
    for family in FAMILIES:
        row(family, list(synthetic(family, given.draws)))


def row(name: str, cases: list[Case]) -> None:
    regrets: dict[str, list[float]] = defaultdict(list)
    held: list[tuple[bool, ...]] = []
    widths: list[tuple[float, ...]] = []
    for case in cases:
        for method in (best_trial, three_points, verdict):
            answer = method(case.rates, case.losses)
            regrets[method.__name__].append(case.cost(answer.rate))
            if answer.intervals:
                held.append(
                    tuple(
                        low / case.slack <= case.best <= high * case.slack
                        for low, high in answer.intervals
                    )
                )
                widths.append(tuple(high / low for low, high in answer.intervals))
    mean = {name: 1e3 * float(np.mean(values)) for name, values in regrets.items()}
    share = [f"{value:.0%}" for value in np.mean(held, axis=0)] if held else ["-", "-"]
    width = (
        [f"{value:.2f}x" for value in np.exp(np.mean(np.log(widths), axis=0))] if held else ["-"]
    )
    print(
        f"| {name} | {len(cases)} | {mean['best_trial']:.2f} | {mean['three_points']:.2f} "
        f"| {mean['verdict']:.2f} | {' | '.join(share)} | {' | '.join(width)} |",
        flush=True,
    )


# -------------------------------------------------------------------------------------- methods


def best_trial(rates: Array, losses: Array) -> Answer:
    return Answer(float(rates[losses.argmin()]))


def three_points(rates: Array, losses: Array) -> Answer:
    at = int(losses.argmin())
    if at in {0, len(rates) - 1}:
        return best_trial(rates, losses)
    x = np.log(rates[at - 1 : at + 2])
    a, b, _ = np.polyfit(x - x[1], losses[at - 1 : at + 2], 2)
    return Answer(math.exp(min(max(x[1] - b / (2 * a), x[0]), x[2])))


def verdict(rates: Array, losses: Array) -> Answer:
    """Return what Lehr says; the best trial where it names no other rate."""
    fit = fit_learning_rate(zip(rates.tolist(), losses.tolist(), strict=True))
    assert fit is not None
    if fit.recommended is None or fit.likely is None or fit.sure is None:
        return Answer(fit.best)
    return Answer(fit.recommended, (fit.likely, fit.sure))


# ----------------------------------------------------------------------------------- real sweeps


def real_curves() -> dict[int, list[tuple[Array, Array]]]:
    """Read the sweeps of each model size whose best rate has neighbours on both sides."""
    found: dict[tuple[int, ...], dict[float, float]] = defaultdict(dict)
    with DATA.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = ("non_embedding_parameters", "tokens", "batch_sequences")
            curve = found[tuple(int(line[name]) for name in key)]
            curve.setdefault(float(line["lr"]), float(line["loss"]))
    sizes: dict[int, list[tuple[Array, Array]]] = defaultdict(list)
    for (size, *_), curve in found.items():
        rates = np.array(sorted(curve))
        losses = np.array([curve[rate] for rate in rates])
        if 0 < losses.argmin() < len(rates) - 1:
            sizes[size].append((rates, losses))
    return sizes


def thinned(curves: list[tuple[Array, Array]], every: int) -> Iterator[Case]:
    for rates, losses in curves:

        def cost(rate: float, rates: Array = rates, losses: Array = losses) -> float:
            return float(np.interp(math.log(rate), np.log(rates), losses) - losses.min())

        for offset in range(every):
            kept = slice(offset, None, every)
            if len(rates[kept]) >= 3:
                best = float(rates[losses.argmin()])
                yield Case(rates[kept], losses[kept], best, cost, HALF_STEP)


# ------------------------------------------------------------------------------ synthetic sweeps

FAMILIES: dict[str, Callable[[Array], Array]] = {
    "parabola": lambda d: d * d,
    "skewed": lambda d: 2 * (np.exp(0.9 * d) - 1 - 0.9 * d),
    "kinked": lambda d: np.where(d < 0, -d, 3 * d),
    "plateau": lambda d: np.maximum(np.abs(d) - 0.7, 0) ** 2 + 5e-4 * d * d,
    "divergence cliff": lambda d: np.where(d > 1.3, 200.0, d * d),
}
"""Loss above the best, in units of 0.02, at ``d`` widths of the valley from it."""


def synthetic(family: str, draws: int) -> Iterator[Case]:
    shape = FAMILIES[family]
    draw = np.random.default_rng(1)
    for count, step in ((5, 2.0), (7, 1.0), (8, 1.0), (12, 0.5)):
        for noise in (0.0005, 0.002, 0.006):
            for depth in (0.02, 0.06):
                for _ in range(draws):
                    x = step * np.arange(count)
                    truth = draw.uniform(x[1], x[-2])
                    width = draw.uniform(0.6, 1.6)

                    def cost(
                        rate: float,
                        truth: float = truth,
                        width: float = width,
                        depth: float = depth,
                    ) -> float:
                        return float(depth * shape(np.array((math.log2(rate) - truth) / width)))

                    losses = depth * shape((x - truth) / width) + draw.normal(0, noise, count)
                    yield Case(2.0**x, 3 + losses, 2.0**truth, cost, 1.0)


if __name__ == "__main__":
    main()
