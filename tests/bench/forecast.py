"""Judge forecasts, and pruning by them, on real small trainings (tests/data/forecast_runs.json.gz).

The half "tuned" gave the priors (`--learn`). The tables are of the other half, which differs in size,
length, batch, seed and rates. A sweep is drawn from the runs of one setting: five of a schedule, or
eight of all with the ill ones. Its trials start four at a time.
"""

import gzip
import json
import math
import random
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from lehr.analysis import forecast as model
from lehr.control.search import SearchTrial, TrialReport, prune, replay
from lehr.specs.search import AshaPruning, ForecastPruning, MedianPruning
from lehr_trainer.configs.schedule import ScheduleConfig, lr_factor

DATA = Path(__file__).parents[1] / "data" / "forecast_runs.json.gz"


class Run:
    def __init__(self, half, setting, kind, rate, steps, schedule, losses):
        own = ScheduleConfig.model_validate(schedule)
        rates = tuple(lr_factor(own, step, steps) for step in range(steps + 1))
        self.half, self.setting, self.kind, self.total = half, setting, kind, steps
        self.plan, self.schedule = model.RatePlan(tuple(range(steps + 1)), rates), str(schedule)
        self.points = [(step, float(loss)) for step, loss in zip(*losses, strict=True)]
        self.end = self.points[-1][1] if math.isfinite(self.points[-1][1]) else math.inf

    def forecast(self, share, known):
        points = [point for point in self.points if point[0] <= share * self.total]
        return model.forecast(*zip(*points, strict=True), self.total, self.plan if known else None)

    def trial(self, number):
        reports = (TrialReport(s, y, number // 4 + s / self.total) for s, y in self.points)
        return SearchTrial(number, {}, "completed", (*reports,), self.total, (self.plan, ()))


def learn(runs):
    """Print the prior: the mean over runs of what each whole curve says of each parameter (EM)."""
    mean = np.array([-1.5, -0.7, -4.0, -4.0, -6.0, -4.5, -3.5])
    spread = np.array([1.0, 0.6, 1.5, 1.5, 1.0, 1.0, 1.0])
    for number in range(6):  # More rounds fit the spreads to these trainings.
        draws = mean + np.random.default_rng(number).standard_normal((4000, len(mean))) * spread
        means, squares = [], []
        for run in runs:
            warm = [point for point in run.points if point[0] >= model.warmed_up(run.plan)]
            logs, *_ = model.explain(draws, run.plan, *model.averaged(*np.array(warm).T))
            weights = model.weights_of(logs, 0.0075)
            means.append(weights @ draws / weights.sum())
            squares.append(weights @ draws**2 / weights.sum())
        mean = np.mean(means, axis=0)
        spread = np.sqrt(np.mean(squares, axis=0) - mean**2)
    print(f"PRIOR = {tuple(mean.round(2))}\nSPREAD = {tuple(spread.round(2))}")


def coverage(name, runs, known=True):
    for share in (0.1, 0.25, 0.5):
        pairs = [(run.forecast(share, known), run.end) for run in runs]
        rows = []
        for made, end in [pair for pair in pairs if pair[0].value is not None]:
            low, high = np.transpose([made.likely, made.sure])
            error = abs(made.value - end) / end
            rows.append([*((low <= end) & (end <= high)), *((high - low) / 2 / made.value), error])
        if rows:
            held = " | ".join(f"{value:.0%}" for value in np.mean(rows, axis=0)[:2])
            sizes = " | ".join(f"{value:.1%}" for value in np.median(rows, axis=0)[2:])
            print(f"| {name} | {share:.0%} | {len(rows)} of {len(runs)} | {held} | {sizes} |")


def stops(rule, trials):
    """Return the step at which the rule stops each trial that it stops."""
    if isinstance(rule, ForecastPruning):
        return {verdict.number: verdict.step for verdict in replay(rule, trials)}
    steps, total = {}, trials[0].total_steps
    # The rules answer for running trials alone. The median needs the ends of the others.
    for judged in [trials] if isinstance(rule, AshaPruning) else [[own] for own in trials]:
        given = [replace(one, state="running") if one in judged else one for one in trials]
        verdicts = prune(rule, given, goal="minimize", total_steps=total)
        steps |= {verdict.number: verdict.step for verdict in verdicts if verdict.step < total}
    return steps


def pruning(name, pools, size):
    draw, tally = random.Random(0), defaultdict(list)
    for number in range(100):
        runs = draw.sample(pools[number % len(pools)], size)
        trials, total = [run.trial(n) for n, run in enumerate(runs)], runs[0].total
        best = min(range(size), key=lambda n: runs[n].end)
        for share in (0.1, 0.25, 0.5):
            at = {"min_steps": round(share * total)}
            rules = {
                f"asha, best 1/{n}": AshaPruning(name="asha", reduction=n, **at) for n in (2, 4)
            }
            rules["forecast"] = ForecastPruning(name="forecast", **at)
            rules["median"] = MedianPruning(name="median", startup_trials=3, **at)
            for title, rule in rules.items():
                steps = stops(rule, trials)
                saved = sum(1 - step / total for step in steps.values()) / size
                tally[title, share].append((len(steps) / size, saved, best in steps))
    for (title, share), rows in sorted(tally.items()):
        values = " | ".join(f"{value:.0%}" for value in np.mean(rows, axis=0))
        print(f"| {name} | {title} | {share:.0%} | {values} |")


def main():
    stored = json.loads(gzip.decompress(DATA.read_bytes()))
    every = [Run(**{"losses": one.pop("val/loss"), **one}) for one in stored]
    if "--learn" in sys.argv:
        learn([run for run in every if run.half == "tuned" and run.kind == "healthy"])
        return
    kinds, alike, mixed = defaultdict(list), defaultdict(list), defaultdict(list)
    for run in [run for run in every if run.half == "judged"]:
        kinds[run.kind].append(run)
        mixed[run.setting].append(run)
        alike[run.setting, run.schedule, run.kind].append(run)
    print("| kind | known | forecasts | in 68 % | in 95 % | half width, 68 % | 95 % | error |")
    for kind, runs in kinds.items():
        coverage(kind, runs)
    coverage("schedule not known", kinds["healthy"], known=False)
    print("| sweeps | rule | from | stopped | steps saved | best stopped |")
    pruning("within a schedule", [runs for runs in alike.values() if len(runs) > 4], 5)
    pruning("of mixed schedules", [*mixed.values()], 8)


if __name__ == "__main__":
    main()
