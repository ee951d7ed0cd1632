"""How good a campaign is: its regret at the target, beside other ways to spend the same FLOPs.

The published runs of tests/data/lr_sweeps.csv (Step Law, arXiv:2503.04715) are the oracle: a trial's
loss is looked up, so that a campaign takes seconds. The target is a training of one model size; trials
may use the other sizes only. Two questions are replayed: the rate alone, at three batches around the
published best (a rung's batch follows the tokens with the power 0.571); and rate and batch together.
Others, with the same FLOPs:

- grid: rates (and batches) evenly over the table at the most expensive rung that the budget holds
  five (nine) trials of; the verdict's rate is carried by the rule `quarter`, the batch by tokens^0.571.
- TPE: Optuna's, at the same rung, between the table's values by interpolation; carried alike.
- halving: three rungs from the cheapest to the most expensive that fits, a third of the budget each;
  the better values of one, carried, are tried at the next.
- Step Law: the study's own law, without a trial. It was fitted on these runs.
- own runs: the law of all runs of the target itself, which no way may see: what is left then is the
  noise of the table's lowest loss.

Regret is the loss of the recommended values, by linear interpolation over the logarithms of rate and
batch, above the lowest of the target's table; beyond the table it counts as the outermost one's. An
interval of a value holds if it comes within half a step of the table's best; one of the loss by the
loss at the recommended values, of which the table has one noisy training.

    python tests/bench/campaign.py [--csv FILE] [--budgets 8 24] [--only TEXT]
"""

from __future__ import annotations

import argparse
import csv
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lehr.analysis.laws import Observation, fit_law
from lehr.analysis.laws.question import CampaignAnswer, CampaignTrial, Field, Question, Rung
from lehr.analysis.lr_fit import fit_learning_rate
from lehr.analysis.lr_rules import RULES, Setting, step_law
from lehr.control.campaign_choice import choose

DATA = Path(__file__).parents[1] / "data" / "lr_sweeps.csv"
SEQUENCE = 2048
POWER = 0.571
"""Of the tokens with which batches are carried."""
HALF_STEP = 2**0.25
Values = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """All runs of one size and token budget; a part of them where the batch is fixed."""

    setting: Setting
    rows: dict[float, dict[float, float]]
    """Losses by batch in tokens, then by rate."""

    @property
    def cost(self) -> float:
        return 6e-18 * self.setting.non_embedding * self.setting.tokens

    @property
    def points(self) -> tuple[Values, ...]:
        return tuple((rate, batch) for batch, row in self.rows.items() for rate in row)

    @property
    def best(self) -> tuple[float, Values]:
        return min((self.rows[batch][rate], (rate, batch)) for rate, batch in self.points)

    def loss(self, rate: float, batch: float) -> float:
        batches = sorted(self.rows)
        losses = []
        for row in (self.rows[one] for one in batches):
            rates = sorted(row)
            losses.append(np.interp(math.log(rate), np.log(rates), [row[one] for one in rates]))
        return float(np.interp(math.log(batch), np.log(batches), losses))

    def at(self, batch: float) -> Table:
        """Return the sweep of the nearest batch."""
        near = min(self.rows, key=lambda one: abs(math.log(one / batch)))
        return Table(replace(self.setting, batch=near), {near: self.rows[near]})


class Case(NamedTuple):
    target: Table
    rungs: tuple[Table, ...]
    """By ascending cost."""
    decide: str


class Spent(NamedTuple):
    """What one way recommends."""

    values: Values
    """Rate and batch."""
    cost: float
    answer: CampaignAnswer | None = None


def tables(path: Path) -> list[Table]:
    rows: dict[Setting, dict[float, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            setting = Setting(
                width=int(line["hidden_size"]),
                depth=int(line["layers"]),
                non_embedding=int(line["non_embedding_parameters"]),
                batch=0,
                tokens=int(line["tokens"]),
            )
            batch = int(line["batch_sequences"]) * SEQUENCE
            rows[setting][batch].setdefault(float(line["lr"]), float(line["loss"]))
    return [
        Table(replace(setting, batch=best_batch(setting)), dict(measured))
        for setting, measured in rows.items()
    ]


def best_batch(setting: Setting) -> float:
    return float(0.58 * setting.tokens**POWER)


def cases(measured: Sequence[Table]) -> Iterator[Case]:
    for target in measured:
        sources = [t for t in measured if t.setting.non_embedding != target.setting.non_embedding]
        sources.sort(key=lambda table: table.cost)
        yield Case(target, tuple(sources), "rate and batch")
        for factor in (0.5, 1, 2):
            one = target.at(factor * best_batch(target.setting))
            rungs = (
                table.at(one.setting.batch * (table.setting.tokens / one.setting.tokens) ** POWER)
                for table in sources
            )
            yield Case(one, tuple(rungs), "rate")


def carried(values: Values, source: Table, target: Table) -> Values:
    batch = values[1] * (target.setting.tokens / source.setting.tokens) ** POWER
    if len(target.rows) == 1:
        batch = target.setting.batch
    there = replace(target.setting, batch=batch)
    here = replace(source.setting, batch=values[1])
    return RULES["quarter"].rate(values[0], here, there), batch


def verdict(table: Table, tried: Sequence[Values]) -> Values:
    """Return the best trial's batch, and the recommended rate of its sweep."""
    best = min(tried, key=lambda values: table.loss(*values))
    row = [(rate, table.loss(rate, batch)) for rate, batch in tried if batch == best[1]]
    fit = fit_learning_rate(row)
    assert fit is not None
    return fit.recommended or fit.best, best[1]


def grid_rung(case: Case, budget: float) -> tuple[Table, int]:
    least = 5 if case.decide == "rate" else 9
    fitting = [table for table in case.rungs if table.cost * least <= budget]
    table = fitting[-1] if fitting else case.rungs[0]
    return table, max(3, int(budget / table.cost))


def grid(case: Case, budget: float) -> Spent:
    table, count = grid_rung(case, budget)
    lines = 1 if case.decide == "rate" else max(2, round(math.sqrt(count / 2)))
    batches = evenly(sorted(table.rows), lines)
    tried = [
        (rate, batch)
        for batch in batches
        for rate in evenly(sorted(table.rows[batch]), count // len(batches))
    ]
    found = carried(verdict(table, tried), table, case.target)
    return Spent(found, table.cost * len(tried))


def evenly(values: Sequence[float], count: int) -> list[float]:
    """Return so many of the values, from the middles of equal parts."""
    count = min(count, len(values))
    return [values[int((k + 0.5) * len(values) / count)] for k in range(count)]


def tpe(case: Case, budget: float) -> Spent:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    table, count = grid_rung(case, budget)
    rates, batches = sorted({rate for rate, _ in table.points}), sorted(table.rows)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def loss(trial: optuna.Trial) -> float:
        batch = batches[0]
        if len(batches) > 1:
            batch = trial.suggest_float("batch", batches[0], batches[-1], log=True)
        return table.loss(trial.suggest_float("lr", rates[0], rates[-1], log=True), batch)

    study.optimize(loss, n_trials=count)
    best = study.best_params
    values = (best["lr"], best.get("batch", batches[0]))
    return Spent(carried(values, table, case.target), table.cost * count)


def halving(case: Case, budget: float) -> Spent:
    fitting = [table for table in case.rungs if table.cost * 3 <= budget / 3] or [case.rungs[0]]
    middle = min(
        fitting, key=lambda one: abs(math.log(one.cost**2 / fitting[0].cost / fitting[-1].cost))
    )
    spent, kept, last = 0.0, list[Values](), None
    for table in dict.fromkeys((fitting[0], middle, fitting[-1])):
        count = max(1, int(budget / 3 / table.cost))
        if last is None:
            points = sorted(table.points, key=lambda point: (point[1], point[0]))
            if case.decide != "rate":
                points = [points[k] for k in np.random.default_rng(0).permutation(len(points))]
            tried = list(evenly(range(len(points)), count))
            kept = [points[int(k)] for k in tried]
        else:
            asked = [carried(values, last, table) for values in kept[: max(count, 1)]]
            kept = [min(table.points, key=lambda p: apart(p, values)) for values in asked]
            kept = list(dict.fromkeys(kept))
        spent += table.cost * len(kept)
        kept.sort(key=lambda values: table.loss(*values))
        last = table
    assert last is not None
    return Spent(carried(kept[0], last, case.target), spent)


def apart(one: Values, other: Values) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one, other, strict=True))


def published(case: Case, _budget: float) -> Spent:
    batch = case.target.setting.batch
    if case.decide != "rate":
        batch = best_batch(case.target.setting)
    return Spent((step_law(case.target.setting), batch), 0.0)


def campaign(case: Case, budget: float, **asked: Any) -> Spent:
    target = case.target
    rates = [rate for rate, _ in target.points]
    fields = [Field("train.optimizer.lr", "rate", min(rates), max(rates), log=True)]
    if case.decide != "rate":
        fields.append(Field("batch", "batch", min(target.rows), max(target.rows), log=True))
    rungs = tuple(
        Rung(
            f"{table.setting.non_embedding / 1e6:.0f}M, {table.setting.tokens / 1e9:.3g}B tokens",
            table.setting,
            table.cost,
            tuple(point[: len(fields)] for point in table.points),
        )
        for table in case.rungs
    )
    asked = {"regret": 0.0, "loss_within": None} | asked
    question = Question(target.setting, tuple(fields), rungs, **asked)
    trials: list[CampaignTrial] = []
    left = budget
    while True:
        step = choose(question, trials, left, 2)
        if not step.trials:
            break
        for trial in step.trials:
            table = case.rungs[trial.rung]
            batch = trial.values[1] if len(trial.values) > 1 else table.setting.batch
            trials.append(replace(trial, loss=table.rows[batch][trial.values[0]]))
            left -= table.cost
    assert step.answer is not None
    values = step.answer.values if len(fields) > 1 else (*step.answer.values, target.setting.batch)
    return Spent(values, budget - left, step.answer)


def own_runs(case: Case, _budget: float) -> Spent:
    """Fit the law to all runs of the target itself: what a smooth law can reach at best."""
    rates = [rate for rate, _ in case.target.points]
    fields = [Field("lr", "rate", min(rates), max(rates), log=True)]
    if case.decide != "rate":
        fields.append(
            Field("batch", "batch", min(case.target.rows), max(case.target.rows), log=True)
        )
    setting = case.target.setting
    runs = tuple(
        Observation(setting, point[: len(fields)], case.target.rows[point[1]][point[0]])
        for point in case.target.points
    )
    law = fit_law(runs, tuple(fields), setting)
    assert law is not None
    return Spent((*law.recommended, setting.batch)[:2], 0.0)


WAYS: dict[str, Callable[..., Spent]] = {
    "grid": grid,
    "TPE": tpe,
    "halving": halving,
    "Step Law": published,
    "campaign": campaign,
    "own runs": own_runs,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", type=Path, default=DATA)
    parser.add_argument("--budgets", type=float, nargs="*", default=[8, 24])
    parser.add_argument("--only", default="")
    parser.add_argument("--without-published", action="store_true")
    parser.add_argument("--stop-early", action="store_true", help="at regret 0.005, loss 0.02")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    asked: dict[str, Any] = {"published": not options.without_published}
    if options.stop_early:
        asked |= {"regret": 0.005, "loss_within": 0.02}
    regrets: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    held: dict[tuple[str, ...], list[list[float]]] = defaultdict(list)
    for case in cases(tables(options.csv)):
        name = f"{case.target.setting.non_embedding / 1e6:.0f}M"
        if options.only not in f"{name} {case.decide}":
            continue
        for times in options.budgets:
            budget = times * case.rungs[0].cost * (1 if case.decide == "rate" else 2)
            keys = [(case.decide, f"{times:g}", part) for part in (name, "all")]
            for way, spend in WAYS.items():
                spent = spend(case, budget, **asked) if way == "campaign" else spend(case, budget)
                regret = case.target.loss(*spent.values) - case.target.best[0]
                for key in keys:
                    regrets[key][way].append(regret)
                    regrets[key][f"spent {way}"].append(spent.cost / budget)
                    if spent.answer is not None:
                        held[key].append(holds(case, spent.values, spent.answer))
            if options.verbose:
                print(
                    case.target.setting.tokens / 1e9, case.target.setting.batch / SEQUENCE,
                    keys[0], {way: f"{1e3 * regrets[keys[0]][way][-1]:.2f}" for way in WAYS},
                    [f"{value:.3g}" for value in case.target.best[1]],
                    flush=True,
                )  # fmt: skip
    print_tables(regrets, held)


def holds(case: Case, values: Values, answer: CampaignAnswer) -> list[float]:
    """Return what each interval holds and how wide it is: of the rate, of the loss."""
    rate, loss = case.target.best[1][0], case.target.loss(*values)
    out = []
    for low, high in answer.intervals[0]:
        out += [low / HALF_STEP <= rate <= high * HALF_STEP, math.log(high / low)]
    for low, high in (answer.likely, answer.sure):
        out += [low <= loss <= high, high - low]
    return [float(value) for value in out]


def print_tables(
    regrets: dict[tuple[str, ...], dict[str, list[float]]],
    held: dict[tuple[str, ...], list[list[float]]],
) -> None:
    print(f"\n| decided | budget | target | n | {' | '.join(WAYS)} | spent |")
    print(f"|---|---:|---|---:|{'---:|' * len(WAYS)}---:|")
    for key, found in sorted(regrets.items()):
        cells = []
        for way in WAYS:
            values = 1e3 * np.array(found[way])
            cells.append(f"{values.mean():.2f} ± {values.std() / math.sqrt(len(values)):.2f}")
        spent = np.mean(found["spent campaign"])
        print(f"| {' | '.join(key)} | {len(values)} | {' | '.join(cells)} | {spent:.0%} |")
    print(
        "\n| decided | budget | target | rate held at 68 % | at 95 % | width at 68 % | at 95 % |",
        end="",
    )
    print(" loss held at 68 % | at 95 % | width at 68 % | at 95 % |")
    print(f"|---|---:|---|{'---:|' * 8}")
    for key, found_ in sorted(held.items()):
        mean = np.mean(found_, axis=0)
        rate = f"{mean[0]:.0%} | {mean[2]:.0%} | {np.exp(mean[1]):.2f}x | {np.exp(mean[3]):.2f}x"
        loss = f"{mean[4]:.0%} | {mean[6]:.0%} | {mean[5]:.3f} | {mean[7]:.3f}"
        print(f"| {' | '.join(key)} | {rate} | {loss} |")


if __name__ == "__main__":
    main()
