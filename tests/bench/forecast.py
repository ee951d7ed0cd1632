"""Judge forecasts and the pruning by them on real small trainings (tests/data/forecast_runs.json.gz).

The runs of the half "tuned" gave the priors (`--learn`); the tables are of the other half, which
differs from it in size, length, batch, seed and rates. A sweep is drawn from the runs of one setting:
within one schedule, or from all of them, the ill ones included. Its trials start four at a time.

    python tests/bench/forecast.py [--learn] [--half tuned] [--sweeps 60]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lehr.analysis import forecast as model
from lehr.control.search import SearchTrial, TrialReport, prune, replay
from lehr.specs.search import AshaPruning, ForecastPruning, MedianPruning, Pruning
from lehr_trainer.configs.schedule import ScheduleConfig, lr_factor

DATA = Path(__file__).parents[1] / "data" / "forecast_runs.json.gz"
CUTS = (0.1, 0.25, 0.5)
ROUNDS = 6
"""Of learning: more of them fit the spreads to these trainings."""
AT_ONCE = 4


def load(half: str) -> dict[str, dict[str, Any]]:
    runs = json.loads(gzip.decompress(DATA.read_bytes()))
    for run in runs.values():
        run["val/loss"][1] = [float(value) for value in run["val/loss"][1]]
        run["plan"] = plan(run["schedule"], run["steps"])
    return {name: run for name, run in runs.items() if run["half"] == half}


def plan(schedule: dict[str, Any], total: int) -> model.RatePlan:
    own = ScheduleConfig.model_validate(schedule)
    steps = tuple(range(total + 1))
    return model.RatePlan(steps, tuple(lr_factor(own, step, total) for step in steps))


def end_of(run: dict[str, Any]) -> float:
    end: float = run["val/loss"][1][-1]
    return end if math.isfinite(end) else math.inf


def until(run: dict[str, Any], share: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    known = [own for own in zip(*run["val/loss"], strict=True) if own[0] <= share * run["steps"]]
    return tuple(step for step, _ in known), tuple(loss for _, loss in known)


def learn(runs: Sequence[dict[str, Any]]) -> None:
    """Print the prior: the mean over runs of what each whole curve says of each parameter (EM)."""
    mean = np.array([-1.5, -0.7, -4.0, -4.0, -6.0, -4.5, -3.5])
    spread = np.array([1.0, 0.6, 1.5, 1.5, 1.0, 1.0, 1.0])
    for number in range(ROUNDS):
        normal = np.random.default_rng(number).standard_normal((4000, len(mean)))
        draws, means, squares = mean + normal * spread, [], []
        for run in runs:
            steps, losses = until(run, 1.0)
            warm = next(i for i, step in enumerate(steps) if step >= model.warmed_up(run["plan"]))
            s, y = model.averaged(np.array(steps[warm:], float), np.array(losses[warm:]))
            weights = model.weights_of(model.explain(draws, run["plan"], s, y)[0], 0.0075)
            means.append(weights @ draws / weights.sum())
            squares.append(weights @ draws**2 / weights.sum())
        mean = np.mean(means, axis=0)
        spread = np.sqrt(np.mean(squares, axis=0) - mean**2)
    print(f"PRIOR = {tuple(mean.round(2))}\nSPREAD = {tuple(spread.round(2))}")


def coverage(runs: Sequence[dict[str, Any]], known: bool) -> Iterator[str]:
    for cut in CUTS:
        rows = []
        for run in runs:
            steps, losses = until(run, cut)
            found = model.forecast(steps, losses, run["steps"], run["plan"] if known else None)
            if found.value is not None:
                end, (a, b), (c, d) = end_of(run), found.likely, found.sure
                rows.append((a <= end <= b, c <= end <= d, (b - a) / 2 / found.value,
                             (d - c) / 2 / found.value, abs(found.value - end) / end))  # fmt: skip
        if rows:
            likely, sure = np.mean([row[:2] for row in rows], axis=0)
            widths = np.median([row[2:] for row in rows], axis=0)
            yield (
                f"| {cut:.0%} | {len(rows)} of {len(runs)} | {likely:.0%} | {sure:.0%} | "
                f"{' | '.join(f'{100 * width:.1f} %' for width in widths)} |"
            )


def trials_of(runs: Sequence[dict[str, Any]]) -> list[SearchTrial]:
    trials = []
    for number, run in enumerate(runs):
        start = number // AT_ONCE * 1.0
        reports = tuple(
            TrialReport(step, loss, start + step / run["steps"])
            for step, loss in zip(*run["val/loss"], strict=True)
        )
        trials.append(
            SearchTrial(number + 1, {}, "completed", reports, run["steps"], (run["plan"], ()))
        )
    return trials


def stops(rule: Pruning, trials: Sequence[SearchTrial]) -> dict[int, int]:
    """Return the step at which the rule stops each trial that it stops."""
    if isinstance(rule, ForecastPruning):
        return {one.number: one.step for one in replay(rule, trials, looks=12)}
    found = {}
    # The rules answer for running trials alone. The median needs the others' ends.
    for judged in [trials] if isinstance(rule, AshaPruning) else [[own] for own in trials]:
        given = [replace(one, state="running") if one in judged else one for one in trials]
        total = judged[0].total_steps or 0
        for verdict in prune(rule, given, goal="minimize", total_steps=total):
            if verdict.step < total:
                found[verdict.number] = verdict.step
    return found


def sweeps(
    runs: Sequence[dict[str, Any]], count: int, mixed: bool
) -> Iterator[list[dict[str, Any]]]:
    draw, pools = random.Random(0), defaultdict(list)
    for run in runs:
        schedule = "" if mixed else json.dumps(run["schedule"])
        if mixed or run["kind"] == "healthy":
            pools[run["setting"], schedule].append(run)
    for number in range(count):
        pool = list(pools.values())[number % len(pools)]
        yield draw.sample(pool, 8 if mixed else 5)


def rules(total: int) -> dict[str, Pruning]:
    def at(share: float) -> int:
        return max(1, round(share * total))

    return {
        **{f"forecast, from {s:.0%}": ForecastPruning(name="forecast", min_steps=at(s)) for s in (0.1, 0.25)},
        **{
            f"asha, best 1/{r}, from {s:.0%}": AshaPruning(name="asha", min_steps=at(s), reduction=r)
            for r, s in ((4, 0.1), (2, 0.1), (2, 0.25), (2, 0.5))
        },
        **{
            f"median, from {s:.0%}": MedianPruning(name="median", min_steps=at(s), startup_trials=3)
            for s in (0.1, 0.25, 0.5)
        },
    }  # fmt: skip


def pruning(drawn: list[list[dict[str, Any]]]) -> Iterator[str]:
    tally: dict[str, list[tuple[int, int, bool, float, float]]] = defaultdict(list)
    for runs in drawn:
        trials = trials_of(runs)
        ends = {n: end_of(run) for n, run in enumerate(runs, start=1)}
        best = min(ends, key=ends.__getitem__)
        for name, rule in rules(runs[0]["steps"]).items():
            stopped = stops(rule, trials)
            saved = sum(1 - step / runs[0]["steps"] for step in stopped.values()) / len(runs)
            left = min((ends[n] for n in ends if n not in stopped), default=math.inf)
            cost = left / ends[best] - 1
            tally[name].append((len(runs), len(stopped), best in stopped, saved, cost))
    for name, rows in tally.items():
        trials_, stopped_, wrong, saved_, costs = zip(*rows, strict=True)
        yield (
            f"| {name} | {sum(stopped_) / sum(trials_):.0%} | {np.mean(saved_):.0%} | "
            f"{np.mean(wrong):.1%} | {100 * np.mean(np.minimum(costs, 1.0)):.2f} % |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learn", action="store_true", help="print the prior of the tuned half")
    parser.add_argument("--half", default="judged", choices=["tuned", "judged"])
    parser.add_argument("--sweeps", type=int, default=60, help="drawn sweeps of each kind")
    given = parser.parse_args()
    runs = list(load(given.half).values())
    healthy = [run for run in runs if run["kind"] == "healthy" and end_of(run) < math.inf]
    if given.learn:
        learn([run for run in load("tuned").values() if run["kind"] == "healthy"])
        return
    head = "known until | forecasts | in 68 % | in 95 % | half width at 68 % | at 95 % | error"
    groups = {"healthy": healthy, "schedule not known": healthy}
    groups |= {run["kind"]: [r for r in runs if r["kind"] == run["kind"]] for run in runs}
    for name, group in groups.items():
        print(f"\n{name}\n| {head} |\n{'|---' * 7}|")
        print("\n".join(coverage(group, known=name != "schedule not known")))
    head = "rule | stopped | steps saved | best one stopped | loss of what is left above the best"
    for mixed in (False, True):
        drawn = list(sweeps(runs, given.sweeps, mixed))
        print(f"\nsweeps {'of mixed schedules' if mixed else 'within a schedule'}: {len(drawn)}")
        print(f"| {head} |\n{'|---' * 5}|")
        print("\n".join(pruning(drawn)))


if __name__ == "__main__":
    main()
