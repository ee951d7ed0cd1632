"""Time of queries as a home grows: 10, 100, 1,000 runs; 1 M and 10 M points of one series.

    python tests/bench/growth.py [--points 1000000 10000000] [--runs 10 100 1000] [--json]

Over the store and the views, in one process. Each ratio is to the smallest size of the same run;
what is right is said beside it: a run's own page should not slow down at all, a list by what is
on its page, a series of n points by less than n.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.presenters import Presenter
from lehr.store import Store
from lehr_testing.stores import begin, run_spec

STEPS = 200


def median_ms(act: Callable[[], Any], repeats: int = 15) -> float:
    act()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 2)


def records(first: int, last: int) -> bytes:
    lines = [
        b'{"kind":"metrics","time":%d.5,"step":%d,"tokens":%d,"values":{"train/loss":%.6f}}'
        % (n, n, n * 100, 3 + 1 / n)
        for n in range(first, last + 1)
    ]
    return b"\n".join(lines) + b"\n"


def with_runs(folder: Path, sizes: list[int]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    data = records(1, STEPS)
    with Store.open(folder) as store:
        presenter = Presenter(store)
        there: list[str] = []
        for size in sizes:
            while len(there) < size:
                run = store.runs.create(run_spec(f"r{len(there)}"))
                attempt = begin(store, run.id)
                store.streams.append(attempt.id, "events.jsonl", 0, data)
                store.event_applier.apply(attempt.id)
                there.append(run.id)
            newest = there[-1]
            asked: dict[str, Callable[[], Any]] = {
                "a page of 10 runs": lambda: presenter.runs.views(store.runs.page(limit=10).items),
                "one run": lambda newest=newest: presenter.runs.detail(store.runs.get(newest)),  # type: ignore[misc]
                "a series of 200 points": lambda newest=newest: store.series.read(
                    newest, "train/loss"
                ),  # type: ignore[misc]
                "a search by name": lambda: store.runs.page(search="r7", limit=10),
                "all runs": lambda: presenter.runs.views(store.runs.page(limit=1000).items),
            }
            for name, act in asked.items():
                found.setdefault(name, {})[size] = median_ms(act, 5 if name == "all runs" else 15)
    return found


def with_points(folder: Path, sizes: list[int]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    with Store.open(folder) as store:
        attempt = begin(store, store.runs.create(run_spec("long")).id)
        run = attempt.run_id
        offset, step = 0, 1
        for size in sizes:
            began = time.perf_counter()
            wrote = 0
            while step <= size:
                last = min(step + 4999, size)
                data = records(step, last)
                offset = store.streams.append(attempt.id, "events.jsonl", offset, data)
                wrote += last - step + 1
                step = last + 1
            rate = wrote / max(1e-9, time.perf_counter() - began)
            found.setdefault("ms to write 1,000 points", {})[size] = round(1e6 / rate, 3)
            asked: dict[str, Callable[[], Any]] = {
                "the whole series in 500 buckets": lambda: store.series.read(run, "train/loss"),
                "a thousandth of it": lambda size=size: store.series.read(  # type: ignore[misc]
                    run, "train/loss", first=size * 0.5, last=size * 0.501
                ),
                "its newest value": lambda: store.series.latest([run], ["train/loss"]),
            }
            for name, act in asked.items():
                found.setdefault(name, {})[size] = median_ms(act, 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--points", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        found = {
            "runs": with_runs(Path(name) / "runs", options.runs),
            "points": with_points(Path(name) / "points", options.points),
        }
    if options.json:
        print(json.dumps({"load": round(os.getloadavg()[0], 1), **found}, indent=1))
        return
    for what, table in found.items():
        for question, times in table.items():
            first = next(iter(times.values()))
            figures = "   ".join(f"{n:,}: {ms} ms ({ms / first:.1f}x)" for n, ms in times.items())
            print(f"{what:<7}{question:<34}{figures}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
