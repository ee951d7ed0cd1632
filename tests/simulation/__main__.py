"""``python -m simulation --seeds 10``: simulate seeds, and print what was found."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

from simulation.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--hours", type=float, help="virtual hours with faults; drawn by default")
    parser.add_argument("--gpus", type=int, help="GPUs, in nodes of 8; drawn by default")
    parser.add_argument("--tail", type=int, default=60, help="events to print before a violation")
    parser.add_argument(
        "--total-hours", type=float, help="stop after the seed with which so many hours are reached"
    )
    parser.add_argument(
        "--look-each", type=float, help="seconds between two looks whether a needed tick is skipped"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on after a violation")
    options = parser.parse_args()
    given: dict[str, Any] = {}
    if options.hours:
        given["hours"] = options.hours
    if options.gpus:
        given["nodes"] = (8,) * max(1, options.gpus // 8)
    totals: Counter[str] = Counter()
    hours = cpu_s = 0.0
    begun = time.perf_counter()
    sizes: Counter[int] = Counter()
    events = 0
    failed = []
    for seed in range(options.first, options.first + options.seeds):
        result = simulate(seed, check_each_s=options.look_each, **given)
        print(result.line(), flush=True)
        hours += result.hours
        cpu_s += result.seconds
        sizes[result.plan.gpus] += round(result.hours)
        events += result.events
        totals += result.counts
        if result.violations:
            failed.append(seed)
            print("\n".join(result.tail[-options.tail :]))
            for violation in result.violations:
                print(f"seed {seed}: {violation.invariant}: {violation.text}\n{violation.trace}")
            if not options.keep_going:
                break
        if options.total_hours and hours >= options.total_hours:
            break
    seconds = time.perf_counter() - begun
    print(
        f"{hours:.0f} cluster hours, {events:,} events, {totals['attempts']:,} attempts, "
        f"{totals['kills']} kills of the server, {sum(_faults(totals).values()):,} faults"
    )
    print(
        f"{totals['GPU minutes'] / 60:,.0f} GPU hours in use; "
        f"{totals['idle minutes'] / 60:,.0f} of the hours idle"
    )
    print(f"{cpu_s:.0f} s of one core ({hours / cpu_s:.2f} hours a second), {seconds:.0f} s in all")
    print("hours by GPUs: " + ", ".join(f"{gpus}: {sizes[gpus]}" for gpus in sorted(sizes)))
    print(", ".join(f"{name} {number}" for name, number in sorted(totals.items())))
    if failed:
        print(f"violations in seeds {failed}; replay one with FIRST={failed[0]} SEEDS=1")
    return 1 if failed else 0


def _faults(totals: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in totals.items() if name.startswith("fault ")}


if __name__ == "__main__":
    sys.exit(main())
