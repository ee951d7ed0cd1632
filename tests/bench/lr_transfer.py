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
from lehr.analysis.lr_rules import RULES, Setting
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


class Published(NamedTuple):
    """A model of GPT-3 (arXiv:2005.14165, table 2.1), Llama (2302.13971) or Llama 3 (2407.21783)."""

    name: str
    width: int
    depth: int
    batch: float
    """Tokens."""
    rate: float


PUBLISHED = (
    Published("GPT-3 125M", 768, 12, 0.5e6, 6.0e-4),
    Published("GPT-3 350M", 1024, 24, 0.5e6, 3.0e-4),
    Published("GPT-3 760M", 1536, 24, 0.5e6, 2.5e-4),
    Published("GPT-3 1.3B", 2048, 24, 1e6, 2.0e-4),
    Published("GPT-3 2.7B", 2560, 32, 1e6, 1.6e-4),
    Published("GPT-3 6.7B", 4096, 32, 2e6, 1.2e-4),
    Published("GPT-3 13B", 5140, 40, 2e6, 1.0e-4),
    Published("GPT-3 175B", 12288, 96, 3.2e6, 0.6e-4),
    Published("Llama 7B", 4096, 32, 4e6, 3.0e-4),
    Published("Llama 13B", 5120, 40, 4e6, 3.0e-4),
    Published("Llama 33B", 6656, 60, 4e6, 1.5e-4),
    Published("Llama 65B", 8192, 80, 4e6, 1.5e-4),
    Published("Llama 3 8B", 4096, 32, 4e6, 3.0e-4),
    Published("Llama 3 70B", 8192, 80, 4e6, 1.5e-4),
    Published("Llama 3 405B", 16384, 126, 16e6, 8.0e-5),
)


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
    first = {one.name.rpartition(" ")[0]: one for one in reversed(PUBLISHED)}
    for one in PUBLISHED:
        base = first[one.name.rpartition(" ")[0]]
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
