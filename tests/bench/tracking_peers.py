"""Ingestion and reading over HTTP, compared with MLflow (SQLite) and Trackio, in one run.

    LEHR_BENCH_PEERS=/path/to/python python tests/bench/tracking_peers.py [--clients 4] [--calls 40]
        [--rounds 3] [--runs 1000] [--skip-reading] [--skip-ingestion]

Ingestion: so many clients, each a process with a run of its own, log 1,000 points a call (100
steps of 10 metrics) by their package's own client, and wait for each answer; in turns, so that
what else the machine does meets all alike. Every point is counted in the database afterwards.
Reading: all runs listed, and 50 series of 2,000 points of one run as a pandas frame. A peer that
is not installed is named as such.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peers.servers import HERE, SERVERS, Peer, lacking, race

STEPS, METRICS = 100, 10


def ingest(folder: Path, kinds: list[str], clients: int, calls: int, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    durability = {}
    for number in range(rounds):
        for kind in kinds:
            # One server at a time: another one's idling must not be paid by this one.
            with SERVERS[kind](folder / f"{kind}-{number}", clients) as peer:
                seconds = race(peer, calls=calls, steps=STEPS, metrics=METRICS)
                wanted = clients * (calls + 1) * STEPS * METRICS
                stored = peer.points()
                if stored != wanted:
                    raise SystemExit(f"{kind}: {stored:,} points stored of {wanted:,}")
                durability[kind] = peer.durability
                rates[kind].append(clients * calls * STEPS * METRICS / seconds)
                print(f"  {kind:<8}{rates[kind][-1]:>10,.0f} points/s", file=sys.stderr)
    return {
        kind: {
            "points_per_s": round(statistics.median(found)),
            "each": [round(rate) for rate in found],
            "ratio": round(
                statistics.median(a / b for a, b in zip(rates["lehr"], found, strict=True)), 1
            ),
            "a_confirmed_call_survives": durability[kind],
        }
        for kind, found in rates.items()
    }


def read(folder: Path, kinds: list[str], runs: int, repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        peers: list[Peer] = []
        for kind in kinds:
            peer = stack.enter_context(SERVERS[kind](folder / f"{kind}-read", 1, runs))
            race(peer, calls=99, steps=20, metrics=50)
            if kind == "lehr":
                peer.setups[0]["token"] = peer.headers["Authorization"].removeprefix("Bearer ")
            peers.append(peer)
        for peer in peers:
            done = subprocess.run(
                [
                    *(peer.python, str(HERE / "reader.py"), peer.kind, peer.address),
                    *(json.dumps(peer.setups[0]), str(repeats)),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{peer.kind}: {done.stderr[-2000:]}")
            measured = json.loads(done.stdout.splitlines()[-1])
            if (measured["runs"], measured["points"]) != (runs, 50 * 2000):
                raise SystemExit(
                    f"{peer.kind}: read {measured['runs']} runs, {measured['points']} points"
                )
            found[peer.kind] = {
                name: round(1000 * statistics.median(measured[f"{name[:-3]}_s"]), 1)
                for name in ("list_ms", "series_ms")
            }
    for measured in found.values():
        measured["list_ratio"] = round(measured["list_ms"] / found["lehr"]["list_ms"], 1)
        measured["series_ratio"] = round(measured["series_ms"] / found["lehr"]["series_ms"], 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-reading", action="store_true")
    parser.add_argument("--skip-ingestion", action="store_true")
    parser.add_argument("--only", nargs="*", default=["mlflow", "trackio"])
    options = parser.parse_args()
    # Ended from outside, it ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    missing = {peer: why for peer in options.only if (why := lacking(peer))}
    kinds = ["lehr", *(peer for peer in options.only if peer not in missing)]
    for why in missing.values():
        print(f"Not compared: {why}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "not_compared": missing,
        }
        if not options.skip_ingestion:
            found["ingest"] = ingest(folder, kinds, options.clients, options.calls, options.rounds)
        if not options.skip_reading:
            found["read"] = read(folder, kinds, options.runs, options.repeats)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
