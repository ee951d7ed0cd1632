"""``python -m simulation --seeds 10``: simulate seeds, and print what was found."""

from __future__ import annotations

import argparse
import sys
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
    parser.add_argument("--keep-going", action="store_true", help="go on after a violation")
    options = parser.parse_args()
    given: dict[str, Any] = {}
    if options.hours:
        given["hours"] = options.hours
    if options.gpus:
        given["nodes"] = (8,) * max(1, options.gpus // 8)
    totals: Counter[str] = Counter()
    hours = seconds = 0.0
    events = 0
    failed = []
    for seed in range(options.first, options.first + options.seeds):
        result = simulate(seed, **given)
        print(result.line(), flush=True)
        hours += result.hours
        seconds += result.seconds
        events += result.events
        totals += result.counts
        if result.violations:
            failed.append(seed)
            print("\n".join(result.tail[-options.tail :]))
            for violation in result.violations:
                print(f"seed {seed}: {violation.invariant}: {violation.text}\n{violation.trace}")
            if not options.keep_going:
                break
    print(
        f"{hours:.0f} cluster hours, {events:,} events, {totals['attempts']:,} attempts, "
        f"{totals['kills']} kills of the server, {seconds:.0f} s: {hours / seconds:.2f} hours a second"
    )
    print(", ".join(f"{name} {number}" for name, number in sorted(totals.items())))
    if failed:
        print(f"violations in seeds {failed}; replay one with FIRST={failed[0]} SEEDS=1")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
