"""How true the verdict on a learning rate is: its cost, its intervals, and what it says of both.

**Published sweeps** (tests/data/lr_sweeps.csv: 1,295 pretraining runs, Step Law, arXiv:2503.04715):
a curve of 9 to 12 rates is thinned to every second, third or fourth rate, at each offset.
**Own trainings** (tests/data/lr_trainings.csv): six families of 10 rates x
10 seeds; a sweep is one, two or three seeds drawn at each rate, of every rate to every fourth.

The truth of both is the minimum of a weighted polynomial through the whole curve: of degree 2, 3 or
4 in three windows, each as probable as it explains the losses (by AIC). Its doubt counts: an
interval holds the truth by the share of the truth's draws inside it, without slack. What the fit
knows of other trainings (``lr_valley.KINDS``) is learned without the size or family of the row.

Besides the best trial, two rules of others: the vertex of a parabola through the best three, and a
Gaussian process of scikit-learn (constant x Matern 5/2 + white noise, fitted by its own maximum
likelihood): `pip install scikit-learn`.

    python tests/bench/lr_verdict.py [--draws 40] [--only TEXT] [--learn]
"""

from __future__ import annotations

import argparse
import csv
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lehr.analysis import lr_posterior, lr_valley
from lehr.analysis.lr_fit import fit_learning_rate

DATA = Path(__file__).parents[1] / "data"
Array = NDArray[np.float64]
KINDS = ("published", "own")
BROAD = lr_valley.Kind(1.0, (0.3, 0.4, 0.7, 0.0, -1.0), (0.8, 0.7, 0.8, 0.7, 1.5))
"""The prior under which curves are drawn to learn from."""
_BROAD_SHARE = 0.2
"""Share of trainings that are taken to be of neither kind: ``BROAD`` is their prior, too."""
_ROUNDS = 5
_LEAST_DEVIATION = 0.15
_TRUTHS = 300


class Curve(NamedTuple):
    """All that is known of one sweep."""

    kind: str
    group: str
    """The size or family, which is left out of what the fit learned."""
    x: Array
    """log2 of the rates."""
    losses: Array
    """[rates, seeds]"""
    grid: Array
    """[G]: log2 of rates around the best."""
    truths: Array
    """[draws, G]: loss above the best, of each draw of the truth."""

    def cost(self, x: float) -> float:
        if self.grid[0] <= x <= self.grid[-1]:
            return float(np.interp(x, self.grid, self.truths.mean(axis=0)))
        means = self.losses.mean(axis=1)
        return float(np.interp(x, self.x, means) - means.min())


class Case(NamedTuple):
    """A sweep that the fit sees."""

    curve: Curve
    x: Array
    losses: list[Array]
    """Of each rate's seeds."""


class Answer(NamedTuple):
    x: float
    intervals: tuple[tuple[float, float], ...] = ()
    """With 68 and 95 %, in log2."""
    cost: float = math.nan


# ---------------------------------------------------------------------------------------- data


def published() -> list[Curve]:
    """Read the sweeps whose best rate has neighbours on both sides."""
    sweeps: dict[tuple[int, ...], dict[float, float]] = defaultdict(dict)
    with (DATA / "lr_sweeps.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = ("non_embedding_parameters", "tokens", "batch_sequences")
            sweep = sweeps[tuple(int(line[name]) for name in key)]
            sweep.setdefault(float(line["lr"]), float(line["loss"]))
    curves = []
    for (size, *_), sweep in sweeps.items():
        x = np.log2(sorted(sweep))
        losses = np.array([[sweep[rate]] for rate in sorted(sweep)])
        noise = np.full(len(x), 2e-3)  # About that of neighbouring rates; the residuals widen it.
        if 0 < losses.argmin() < len(x) - 1:
            curves.append(
                Curve("published", f"{size / 1e6:.0f}M", x, losses, *truth(x, losses[:, 0], noise))
            )
    return curves


def own() -> list[Curve]:
    families: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (DATA / "lr_trainings.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            families[line["family"]][float(line["lr"])].append(float(line["loss"]))
    curves = []
    for name, rates in families.items():
        finite = [rate for rate in sorted(rates) if np.isfinite(rates[rate]).all()]
        x, losses = np.log2(finite), np.array([rates[rate] for rate in finite])
        variance = losses.var(axis=1, ddof=1)
        smooth = np.convolve([variance[0], *variance, variance[-1]], [0.25, 0.5, 0.25], "valid")
        noise = np.sqrt(smooth / losses.shape[1])
        curves.append(Curve("own", name, x, losses, *truth(x, losses.mean(axis=1), noise)))
    return curves


def truth(x: Array, losses: Array, noise: Array) -> tuple[Array, Array]:
    """Return a grid around the best rate, and draws of the loss above the best on it."""
    best = int(losses.argmin())
    above = losses - losses[best]
    grid = np.linspace(x[max(best - 2, 0)], x[min(best + 2, len(x) - 1)], 161)
    draw = np.random.default_rng(5)
    scores, drawn = [], []
    for window in (1.6, 2.1, 2.7):
        used = (np.abs(x - x[best]) <= window) & (above < 40 * np.median(np.sort(above)[1:4]))
        for degree in (2, 3, 4):
            spare = int(used.sum()) - degree - 1
            if spare < 1:
                continue
            powers = np.arange(degree + 1)
            weight = 1 / np.sqrt(noise[used] ** 2 + (0.08 * above[used]) ** 2)
            terms = weight[:, None] * (x[used] - x[best])[:, None] ** powers
            values = weight * losses[used]
            fitted = np.linalg.lstsq(terms, values, rcond=None)[0]
            misfit = float(((values - terms @ fitted) ** 2).sum())
            on_grid = (grid - x[best])[:, None] ** powers
            if (on_grid @ fitted).argmin() in {0, len(grid) - 1}:
                continue
            root = np.linalg.cholesky(np.linalg.inv(terms.T @ terms) * max(1.0, misfit / spare))
            some = fitted + draw.standard_normal((_TRUTHS, degree + 1)) @ root.T
            scores.append(-6 * (misfit / 2 + degree + 1) / used.sum())
            drawn.append(some @ on_grid.T)
    shares = np.exp(np.array(scores) - max(scores))
    which = draw.choice(len(drawn), _TRUTHS, p=shares / shares.sum())
    curves = np.array([drawn[fit][number] for number, fit in enumerate(which)])
    return grid, curves - curves.min(axis=1, keepdims=True)


def thinned(curve: Curve, every: int) -> Iterator[Case]:
    for offset in range(every):
        x = curve.x[offset::every]
        if len(x) >= 3:
            yield Case(curve, x, list(curve.losses[offset::every]))


def sampled(curve: Curve, seeds: int, every: int, draws: int) -> Iterator[Case]:
    draw = np.random.default_rng(7)
    for number in range(draws):
        offset = number % every if len(curve.x[number % every :: every]) >= 3 else 0
        losses = [draw.choice(some, seeds, replace=False) for some in curve.losses[offset::every]]
        yield Case(curve, curve.x[offset::every], losses)


# ------------------------------------------------------------------------------------- methods


def best_trial(case: Case) -> Answer:
    return Answer(float(case.x[_best(case)]))


def parabola(case: Case) -> Answer:
    best, means = _best(case), np.array([some.mean() for some in case.losses])
    if best in {0, len(case.x) - 1}:
        return best_trial(case)
    x = case.x[best - 1 : best + 2]
    square, slope, _ = np.polyfit(x - x[1], means[best - 1 : best + 2], 2)
    return Answer(float(np.clip(x[1] - slope / (2 * square), x[0], x[2])))


def gaussian_process(case: Case) -> Answer:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    x = np.repeat(case.x, [len(some) for some in case.losses])[:, None]
    kernel = ConstantKernel() * Matern(nu=2.5) + WhiteKernel(1e-2)
    process = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0
    )
    grid = np.linspace(case.x[0], case.x[-1], 121)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says where its optimizer ends at a bound.
        mean = process.fit(x, np.concatenate(case.losses)).predict(grid)
    return Answer(float(grid[mean.argmin(), 0]))


def verdict(case: Case) -> Answer:
    """Return what Lehr says; the best trial where it names no other rate."""
    points = [
        (2.0**x, float(loss)) for x, some in zip(case.x, case.losses, strict=True) for loss in some
    ]
    fit = fit_learning_rate(points)
    assert fit is not None
    if fit.recommended is None or fit.likely is None or fit.sure is None or fit.curves is None:
        return best_trial(case)
    low, high = np.log2(fit.likely), np.log2(fit.sure)
    return Answer(math.log2(fit.recommended), (tuple(low), tuple(high)), fit.curves.cost)


def _best(case: Case) -> int:
    return int(np.argmin([some.mean() for some in case.losses]))


# ------------------------------------------------------------------------------------ learning


def set_kinds(kinds: tuple[lr_valley.Kind, ...]) -> None:
    lr_valley.KINDS = kinds
    lr_posterior._posterior.cache_clear()


def broad_curves(curves: Sequence[Curve]) -> list[tuple[Curve, Array]]:
    """Return each sweep's probable curves under the ``BROAD`` prior, from all its losses."""
    set_kinds((BROAD,))
    alike, lr_valley.ALIKE = lr_valley.ALIKE, 0.0  # Here each loss counts fully.
    drawn = []
    for curve in curves:
        trials = tuple(
            lr_posterior.RateResult(2.0**x, tuple(map(float, losses)))
            for x, losses in zip(curve.x, curve.losses, strict=True)
        )
        posterior = lr_posterior.posterior(trials)
        drawn.append((curve, posterior.curves[:, lr_valley.SKEW :]))
    lr_valley.ALIKE = alike
    return drawn


def learn(drawn: Sequence[tuple[Curve, Array]], without: str = "") -> tuple[lr_valley.Kind, ...]:
    """Learn the kinds by expectation and maximization (Dempster, Laird & Rubin 1977), the curves
    drawn under the broad prior being weighted.
    """
    kinds = []
    for name in KINDS:
        sets = [some for curve, some in drawn if curve.kind == name and curve.group != without]
        mean, deviation = np.array(BROAD.mean), np.array(BROAD.deviation)
        start = [(((some - mean) / deviation) ** 2).sum(axis=1) / 2 for some in sets]
        for _ in range(_ROUNDS):
            means, squares = [], []
            for some, broad in zip(sets, start, strict=True):
                logs = broad - (((some - mean) / deviation) ** 2).sum(axis=1) / 2
                weights = np.exp(logs - logs.max())
                weights /= weights.sum()
                means.append(weights @ some)
                squares.append(weights @ (some - means[-1]) ** 2)
            mean = np.mean(means, axis=0)
            variance = np.mean(squares, axis=0) + np.var(means, axis=0)
            deviation = np.maximum(np.sqrt(variance), _LEAST_DEVIATION)
        # The predictive distribution of one more training is Student's t: it is as wide.
        deviation *= math.sqrt((len(sets) + 1) / (len(sets) - 3))
        rounded = [tuple(round(float(value), 2) for value in both) for both in (mean, deviation)]
        kinds.append(lr_valley.Kind((1 - _BROAD_SHARE) / len(KINDS), *rounded))
    return (*kinds, replace(BROAD, share=_BROAD_SHARE))


# --------------------------------------------------------------------------------------- table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="sweeps of each family and row")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--learn", action="store_true", help="print lr_valley.KINDS alone")
    options = parser.parse_args()
    curves = [*published(), *own()]
    drawn = broad_curves(curves)
    if options.learn:
        print(*learn(drawn), sep="\n")
        return
    kinds = {group: learn(drawn, group) for group in dict.fromkeys(c.group for c in curves)}
    print(
        "| sweeps | n | no interval | best trial | parabola | Gaussian process | verdict (1e-3) "
        "| stated | real (1e-3) | held at 68 % | at 95 % | width at 68 % | at 95 % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, cases in rows(curves, options.draws):
        if options.only in name:
            print(row(name, cases, kinds), flush=True)


def rows(curves: Sequence[Curve], draws: int) -> Iterator[tuple[str, list[Case]]]:
    for group in dict.fromkeys(curve.group for curve in curves if curve.kind == "published"):
        for every in (2, 3, 4):
            cases = [case for c in curves if c.group == group for case in thinned(c, every)]
            yield f"{group}, every {every}", cases
    families = [curve for curve in curves if curve.kind == "own"]
    for curve in families:
        for seeds, every in ((1, 1), (1, 2), (3, 1)):
            yield (
                f"{curve.group}, {_label(seeds, every)}",
                list(sampled(curve, seeds, every, draws)),
            )
    for seeds in (1, 2, 3):
        for every in (1, 2, 3, 4):
            cases = [case for c in families for case in sampled(c, seeds, every, draws // 2)]
            yield f"all six, {_label(seeds, every)}", cases


def _label(seeds: int, every: int) -> str:
    return f"{seeds} seed{'s' * (seeds > 1)}, every {every}"


def row(
    name: str, cases: Sequence[Case], kinds: dict[str, tuple[lr_valley.Kind, ...]] | None = None
) -> str:
    score = judge(cases, kinds)
    held = [
        f"{np.mean(shares):.0%} ± {np.std(shares) / math.sqrt(len(shares)):.0%}"
        for shares in score.held
    ]
    widths = [f"{2 ** np.mean(widths):.2f}x" for widths in score.widths]
    regrets = " | ".join(f"{1e3 * np.mean(score.regrets[rule]):.2f}" for rule in RULES)
    return (
        f"| {name} | {len(cases)} | {1 - len(score.stated) / len(cases):.0%} | {regrets} "
        f"| {1e3 * np.mean(score.stated):.2f} | {1e3 * np.mean(score.real):.2f} "
        f"| {' | '.join(held)} | {' | '.join(widths)} |"
    )


class Score(NamedTuple):
    regrets: dict[str, list[float]]
    """Of each rule, over all sweeps."""
    stated: list[float]
    """What the verdict states its rate to cost, over the sweeps with an interval."""
    real: list[float]
    held: tuple[list[float], list[float]]
    """Share of the truth's draws in the interval with 68 %, and with 95 %."""
    widths: tuple[list[float], list[float]]
    """In doublings."""


RULES: dict[str, Callable[[Case], Answer]] = {
    "best trial": best_trial,
    "parabola": parabola,
    "Gaussian process": gaussian_process,
    "verdict": verdict,
}


def judge(
    cases: Sequence[Case],
    kinds: dict[str, tuple[lr_valley.Kind, ...]] | None = None,
    rules: Sequence[str] = tuple(RULES),
) -> Score:
    """Args: kinds: what the fit may know, by the group of the case; else it is not changed."""
    score = Score({rule: [] for rule in rules}, [], [], ([], []), ([], []))
    for case in cases:
        if kinds is not None and lr_valley.KINDS is not kinds[case.curve.group]:
            set_kinds(kinds[case.curve.group])
        best = case.curve.grid[case.curve.truths.argmin(axis=1)]
        for rule in rules:
            answer = RULES[rule](case)
            cost = case.curve.cost(answer.x)
            score.regrets[rule].append(cost)
            if answer.intervals:
                score.stated.append(answer.cost)
                score.real.append(cost)
            for (low, high), shares, widths in zip(
                answer.intervals, score.held, score.widths, strict=False
            ):
                shares.append(float(np.mean((best >= low) & (best <= high))))
                widths.append(high - low)
    return score


if __name__ == "__main__":
    main()
