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
and its two neighbours. "most above best trial" is the most that following the verdict cost in one
sweep, in 1e-3 above the loss at its best trial.

A sweep whose best trial is at an edge of the grid has no interval, so it counts in the regret and not in
the intervals: "no interval" is the share of such sweeps. They have a bound on the other side of the best
rate instead, which the second table judges.

With ``--seeds 3`` each rate of a synthetic sweep has three seeds, so that the noise is known.

With ``--pruned`` the worse half of each real sweep's trials counts as pruned, as a pruning rule that
makes no mistake would do: their losses are unknown, and their rates bracket the best.

    python tests/bench/lr_verdict.py [--draws 40] [--real | --pruned | --seeds 3]
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
    pruned: tuple[float, ...] = ()
    seeds: Array | None = None
    """Losses of each seed, whose means are ``losses``, [seeds, rates]; None with one seed."""


class Answer(NamedTuple):
    rate: float
    intervals: tuple[tuple[float, float], ...] = ()
    """With 68 and 95 %."""
    beyond: tuple[float, float] | None = None
    """The rates beyond the bound, where the best trial is at an edge."""
    cost: float = 0.0
    """What the verdict expects the rate to cost above the best one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="of each family, grid, noise, depth")
    parser.add_argument("--real", action="store_true", help="only the published sweeps")
    parser.add_argument("--pruned", action="store_true", help="only those, half of them pruned")
    parser.add_argument("--seeds", type=int, default=1, help="of each rate; above 1 only synthetic")
    given = parser.parse_args()
    print(
        "| sweeps | n | no interval | regret, best trial | three-point parabola | verdict (1e-3) "
        "| most above best trial | held at 68 % | at 95 % | width at 68 % | at 95 % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    bounds = []
    for size, curves in real_curves().items() if given.seeds == 1 else ():
        for every in (1, 2, 3, 4):
            name = f"{size / 1e6:.0f}M, every {every}"
            cases = list(thinned(curves, every))
            if given.pruned:
                bounds.append(row(f"{name}, without the pruned", [half(case) for case in cases]))
                cases = [pruned_half(case) for case in cases]
                name += ", half pruned"
            bounds.append(row(name, cases))
    if not given.real and not given.pruned:
        bounds.extend(
            row(family, list(synthetic(family, given.draws, given.seeds))) for family in FAMILIES
        )
    print("\n| best trial at an edge | n | bound held at 95 % | tried rates inside it |")
    print("|---|---:|---:|---:|")
    print("\n".join(bound for bound in bounds if bound is not None))


def row(name: str, cases: list[Case]) -> str | None:
    """Print the row of the first table; return that of the second, if a sweep has a bound."""
    regrets: dict[str, list[float]] = defaultdict(list)
    held: list[tuple[bool, ...]] = []
    widths: list[tuple[float, ...]] = []
    bounds: list[tuple[bool, float]] = []
    for case in cases:
        for method in (best_trial, three_points, verdict):
            answer = method(case)
            regrets[method.__name__].append(case.cost(answer.rate))
            if answer.intervals:
                held.append(
                    tuple(
                        low / case.slack <= case.best <= high * case.slack
                        for low, high in answer.intervals
                    )
                )
                widths.append(tuple(high / low for low, high in answer.intervals))
            if answer.beyond is not None:
                low, high = answer.beyond
                inside = answer.rate / low if high == math.inf else high / answer.rate
                bounds.append((low / case.slack <= case.best <= high * case.slack, inside))
    mean = {name: 1e3 * float(np.mean(values)) for name, values in regrets.items()}
    above = np.array(regrets["verdict"]) - np.array(regrets["best_trial"])
    most = max(0.0, float(above.max()))
    share = [f"{value:.0%}" for value in np.mean(held, axis=0)] if held else ["-", "-"]
    width = (
        [f"{value:.2f}x" for value in np.exp(np.mean(np.log(widths), axis=0))]
        if held
        else ["-", "-"]
    )
    print(
        f"| {name} | {len(cases)} | {1 - len(held) / len(cases):.0%} "
        f"| {mean['best_trial']:.2f} | {mean['three_points']:.2f} "
        f"| {mean['verdict']:.2f} | {1e3 * most:.1f} | {' | '.join(share)} | {' | '.join(width)} |",
        flush=True,
    )
    if not bounds:
        return None
    inside = float(np.exp(np.mean(np.log([factor for _, factor in bounds]))))
    kept = float(np.mean([one for one, _ in bounds]))
    return f"| {name} | {len(bounds)} | {kept:.0%} | {inside:.2f}x |"


# -------------------------------------------------------------------------------------- methods


def best_trial(case: Case) -> Answer:
    return Answer(float(case.rates[case.losses.argmin()]))


def three_points(case: Case) -> Answer:
    rates, losses = case.rates, case.losses
    at = int(losses.argmin())
    if at in {0, len(rates) - 1}:
        return best_trial(case)
    x = np.log(rates[at - 1 : at + 2])
    a, b, _ = np.polyfit(x - x[1], losses[at - 1 : at + 2], 2)
    return Answer(math.exp(min(max(x[1] - b / (2 * a), x[0]), x[2])))


def verdict(case: Case) -> Answer:
    """Return what Lehr says; the best trial where it names no other rate."""
    seeds = case.losses[None] if case.seeds is None else case.seeds
    points = [
        point for one in seeds for point in zip(case.rates.tolist(), one.tolist(), strict=True)
    ]
    fit = fit_learning_rate(points, case.pruned)
    assert fit is not None
    if fit.bound is not None:
        beyond = (0.0, fit.bound) if fit.side == "below" else (fit.bound, math.inf)
        return Answer(fit.best, beyond=beyond)
    if fit.recommended is None or fit.likely is None or fit.sure is None:
        return Answer(fit.best)
    assert fit.curves is not None
    return Answer(fit.recommended, (fit.likely, fit.sure), cost=fit.curves.cost)


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


def half(case: Case) -> Case:
    """Return the sweep without the worse half of its trials."""
    keep = np.sort(np.argsort(case.losses, kind="stable")[: (len(case.losses) + 1) // 2])
    return case._replace(rates=case.rates[keep], losses=case.losses[keep])


def pruned_half(case: Case) -> Case:
    """Return the sweep with the worse half of its trials pruned."""
    kept = half(case)
    return kept._replace(pruned=tuple(sorted({*case.rates.tolist()} - {*kept.rates.tolist()})))


# ------------------------------------------------------------------------------ synthetic sweeps

FAMILIES: dict[str, Callable[[Array], Array]] = {
    "parabola": lambda d: d * d,
    "skewed": lambda d: 2 * (np.exp(0.9 * d) - 1 - 0.9 * d),
    "kinked": lambda d: np.where(d < 0, -d, 3 * d),
    "plateau": lambda d: np.maximum(np.abs(d) - 0.7, 0) ** 2 + 5e-4 * d * d,
    "divergence cliff": lambda d: np.where(d > 1.3, 200.0, d * d),
}
"""Loss above the best, in units of 0.02, at ``d`` widths of the valley from it."""


def synthetic(family: str, draws: int, seeds: int = 1) -> Iterator[Case]:
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

                    curve = 3 + depth * shape((x - truth) / width)
                    each = curve + draw.normal(0, noise, (seeds, count))
                    yield Case(
                        2.0**x, each.mean(axis=0), 2.0**truth, cost, 1.0,
                        seeds=each if seeds > 1 else None,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
