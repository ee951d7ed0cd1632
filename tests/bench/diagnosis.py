"""How good the diagnosis is: what it finds, by which name, how soon, and its false alarms.

**Simulated runs** of 25 healthy families and 25 anomalies (tests/lehr_testing/diagnosed_curves.py), and
**real runs** of small models, healthy and with a planted anomaly (tests/bench/diagnosis_runs.py). Each run is
judged at every logged point as if it were live. A false alarm is any alert at any moment of a
healthy run. An anomalous run counts as found if an alert with the right name came at any point after the
anomaly began, and before the run's end. Thresholds were chosen on even seeds; the table has the odd ones, whose noise
has heavier tails and whose anomalies are weaker.

    python tests/bench/diagnosis.py [--seeds 12] [--every 1] [--runs simulated] [--only climbs] [--tuned]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.analysis.diagnosis import diagnose
from lehr_testing.anomalies import ANOMALIES
from lehr_testing.diagnosed_curves import Labelled, real_runs, simulated
from lehr_testing.healthy_families import HEALTHY


class Detections(NamedTuple):
    """When each alert was first raised."""

    first: dict[str, int]
    last: set[str]
    """Alerts at the end."""


def judge_live(run: Labelled, every: int) -> Detections:
    """Judge a run at every so many logged points, and at its end."""
    steps = run.curves["train/loss"].steps
    first: dict[str, int] = {}
    found: set[str] = set()
    for step in [*steps[every - 1 : -1 : every], steps[-1]]:
        alerts = diagnose(
            run.until(step),
            total_steps=run.total_steps,
            warmup_steps=run.warmup_steps,
            changes=run.changes,
        )
        found = {alert.code for alert in alerts}
        for code in found:
            first.setdefault(code, step)
    return Detections(first, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12, help="of each family; half are reported")
    parser.add_argument("--every", type=int, default=1, help="logged points between judgements")
    parser.add_argument("--tuned", action="store_true", help="show the runs of even seeds instead")
    parser.add_argument("--list", action="store_true", help="list what went wrong")
    parser.add_argument("--runs", choices=["simulated", "real", "all"], default="all")
    parser.add_argument("--only", nargs="+", default=[*HEALTHY, *ANOMALIES], help="simulated kinds")
    given = parser.parse_args()
    runs = [
        *(simulated(range(given.seeds), given.only) if given.runs != "real" else []),
        *(real_runs() if given.runs != "simulated" else []),
    ]
    runs = [run for run in runs if run.tuned == given.tuned]
    judged = [(run, judge_live(run, given.every)) for run in runs]
    report(judged, listed=given.list)


def report(judged: list[tuple[Labelled, Detections]], *, listed: bool = False) -> None:
    healthy = [(run, raised) for run, raised in judged if not run.label]
    alarmed = [(run, raised) for run, raised in healthy if raised.first]
    print(f"{len(judged)} runs, of which {sum(run.real for run, _ in judged)} are real.")
    for real in (False, True):
        among = [raised for run, raised in healthy if run.real == real]
        false = sum(bool(raised.first) for raised in among)
        print(
            f"{'Real' if real else 'Simulated'} healthy runs with a false alarm at any moment: "
            f"{false} of {len(among)} ({false / max(len(among), 1):.1%})"
        )
    kinds: dict[tuple[bool, str], list[tuple[Labelled, Detections]]] = defaultdict(list)
    for run, raised in judged:
        if run.label:
            kinds[run.real, run.name].append((run, raised))
    print("\n| anomaly | alert | n | found | time to find, median | other alerts besides |")
    print("|---|---|---:|---:|---:|---|")
    total = 0
    for (real, name), group in kinds.items():
        times, others = [], Counter()
        for run, raised in group:
            right = [
                step
                for code, step in raised.first.items()
                if code in run.label and step >= run.began
            ]
            times += [(min(right) - run.began) / run.total_steps] if right else []
            others.update(code for code in raised.first if code not in run.label)
            if listed and not right:
                print(f"   missed: {name}, seed {run.seed}: {raised.first}", file=sys.stderr)
        total += len(times)
        took = f"{np.median(times):.0%} of the run" if times else ""
        print(
            f"| {name}{' (real)' if real else ''} | {', '.join(f'`{c}`' for c in group[0][0].label)} "
            f"| {len(group)} | {len(times) / len(group):.0%} | {took} "
            f"| {', '.join(f'`{c}` {n}' for c, n in others.most_common())} |"
        )
    anomalous = sum(len(group) for group in kinds.values())
    print(f"\nFound with the right name: {total} of {anomalous} ({total / max(anomalous, 1):.1%}).")
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for run, raised in judged:
        counts.update([*raised.first])
        right.update(code for code in raised.first if code in run.label)
    print("\n| alert | raised | right |\n|---|---:|---:|")
    for code, count in sorted(counts.items()):
        print(f"| `{code}` | {count} | {right[code] / count:.0%} |")
    if listed:
        for run, raised in alarmed:
            print(f"   false: {run.name}, seed {run.seed}: {raised.first}", file=sys.stderr)


if __name__ == "__main__":
    main()
