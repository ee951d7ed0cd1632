"""How good the transfer of a learning rate is: each rule's regret, and the interval's coverage.

On the published runs of tests/data/lr_sweeps.csv (Step Law, arXiv:2503.04715: three model sizes, four
token budgets, ten batch sizes). The verdict's rate of one whole curve is carried to each curve that
is no smaller in anything. Regret is the loss of the carried rate, by linear interpolation over log
rate between the target's two nearest measured rates, above the lowest of the target's curve; beyond
the measured rates it counts as the outermost one's, and the table has the share of those. An interval
holds if it comes within half a step (a factor of 1.19) of the target's lowest rate.

The fourth root and the interval's width were chosen on changes within the 215M model ("tuned");
"reported" are all others.

    python tests/bench/lr_transfer.py
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from lr_verdict import DATA
from numpy.typing import NDArray

from lehr.analysis.lr_fit import LrFit, fit_learning_rate
from lehr.analysis.lr_rules import PUBLISHED, RULES, Setting
from lehr.analysis.lr_transfer import LrTransfer, transfer

HALF_STEP = 2**0.25
"""Half of the published sweeps' spacing, as a factor."""

SEQUENCE = 2048
TUNED = 214663680
Array = NDArray[np.float64]


class Curve(NamedTuple):
    setting: Setting
    rates: Array
    losses: Array
    fit: LrFit

    @property
    def best(self) -> float:
        return float(self.rates[self.losses.argmin()])

    def regret(self, rate: float) -> float:
        found = np.interp(math.log(rate), np.log(self.rates), self.losses)
        return float(found - self.losses.min())


class Case(NamedTuple):
    """A curve, and the rate that was carried to it."""

    target: Curve
    carried: LrTransfer


def main() -> None:
    cases: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for source, target in itertools.permutations(curves(), 2):
        changed = [
            name
            for name in ("non_embedding", "tokens", "batch")
            if getattr(source.setting, name) != getattr(target.setting, name)
        ]
        if any(getattr(source.setting, n) > getattr(target.setting, n) for n in changed):
            continue
        kind = " and ".join(changed).replace("non_embedding", "size")
        tuned = source.setting.non_embedding == target.setting.non_embedding == TUNED
        case = Case(target, transfer(source.fit, source.setting, target.setting))
        for name in (kind, "any"):
            cases[name, "tuned" if tuned else "reported"].append(case)
    print(f"| change | part | n | {' | '.join(RULES)} | outside |")
    print(f"|---|---|---:|{'---:|' * len(RULES)}---:|")
    for (kind, part), found in sorted(cases.items()):
        regrets = [[one.target.regret(rule.rate) for rule in one.carried.answers] for one in found]
        beyond = [
            not one.target.rates[0] <= one.carried.rate <= one.target.rates[-1] for one in found
        ]
        mean = " | ".join(f"{1e3 * value:.2f}" for value in np.mean(regrets, axis=0))
        print(f"| {kind} | {part} | {len(found)} | {mean} | {np.mean(beyond):.0%} |")
    print("\n| change | part | n | held at 68 % | at 95 % | width at 68 % | at 95 % |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (kind, part), found in sorted(cases.items()):
        coverage(kind, part, found)
    published()


def coverage(kind: str, part: str, cases: list[Case]) -> None:
    held, widths = [], []
    for target, carried in cases:
        assert carried.likely is not None
        assert carried.sure is not None
        both = (carried.likely, carried.sure)
        held.append([low / HALF_STEP <= target.best <= high * HALF_STEP for low, high in both])
        widths.append([high / low for low, high in both])
    share = " | ".join(f"{value:.0%}" for value in np.mean(held, axis=0))
    width = " | ".join(f"{value:.1f}x" for value in np.exp(np.mean(np.log(widths), axis=0)))
    print(f"| {kind} | {part} | {len(cases)} | {share} | {width} |")


def published() -> None:
    """Carry the rate of each publication's first model to its others."""
    print("\n| model | its rate | width | width and depth | quarter |")
    print("|---|---:|---:|---:|---:|")
    first = {one.source: one for one in reversed(PUBLISHED)}
    for one in PUBLISHED:
        base = first[one.source]
        width = base.rate * base.width / one.width
        deep = width * (base.depth / one.depth) ** 0.5
        quarter = deep * (one.batch / base.batch) ** 0.25
        print(f"| {one.name} | {one.rate:.2g} | {width:.2g} | {deep:.2g} | {quarter:.2g} |")


def curves() -> list[Curve]:
    """Read the curves whose best rate has neighbours on both sides."""
    measured: dict[Setting, dict[float, float]] = defaultdict(dict)
    with (DATA / "lr_sweeps.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            size, tokens = int(line["non_embedding_parameters"]), int(line["tokens"])
            setting = Setting(
                width=int(line["hidden_size"]),
                depth=int(line["layers"]),
                parameters=size,
                non_embedding=size,
                batch=int(line["batch_sequences"]) * SEQUENCE,
                tokens=tokens,
            )
            measured[setting].setdefault(float(line["lr"]), float(line["loss"]))
    found = []
    for setting, curve in measured.items():
        fit = fit_learning_rate(curve.items())
        if fit is not None and fit.recommended is not None:
            rates = np.array(sorted(curve))
            found.append(Curve(setting, rates, np.array([curve[r] for r in rates]), fit))
    return found


if __name__ == "__main__":
    main()
